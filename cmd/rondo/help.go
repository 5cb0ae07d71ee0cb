package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"rondo/job/jobspec"
)

// groupFlags lists a command's flags in groups in its help, those for beginners first.
func groupFlags(c *cobra.Command) {
	c.SetUsageFunc(func(c *cobra.Command) error {
		examples := ""
		if c.Example != "" {
			examples = "\nExamples:\n" + c.Example + "\n"
		}
		_, err := fmt.Fprintf(c.OutOrStderr(), "Usage:\n  %s\n%s%s", c.UseLine(), examples,
			jobspec.Usages(c.LocalFlags()))
		return err
	})
}
