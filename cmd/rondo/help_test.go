package main

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rondo/job/jobspec"
)

// TestEveryFlagIsInOneGroup: a flag that is added needs its place in the help.
func TestEveryFlagIsInOneGroup(t *testing.T) {
	for _, c := range []*cobra.Command{trainCommand(), submitCommand(), resumeJobCommand()} {
		c.Flags().VisitAll(func(flag *pflag.Flag) {
			if titles := jobspec.GroupsOf(flag.Name); len(titles) != 1 {
				t.Errorf("%s --%s is in groups %q of job/jobspec/groups.go; want one",
					c.Name(), flag.Name, titles)
			}
		})
	}
}

// TestHelp: the flags of a beginner come first, each flag once, in lines that fit a terminal.
func TestHelp(t *testing.T) {
	for _, c := range []*cobra.Command{trainCommand(), submitCommand(), resumeJobCommand()} {
		help := c.UsageString()
		_, first, found := strings.Cut(help, "\nTo begin with:\n")
		first, _, _ = strings.Cut(first, "\n\n")
		if n := strings.Count("\n"+first, "\n  --"); !found || n != 12 {
			t.Errorf("%s: %d flags to begin with:\n%s", c.Name(), n, first)
		}
		for line := range strings.Lines(help) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
				t.Errorf("%s: a line has %d columns: %s", c.Name(), n, line)
			}
		}
		c.Flags().VisitAll(func(flag *pflag.Flag) {
			at := regexp.MustCompile(`(?m)^  (-\w, )?--` + flag.Name + `( |$)`)
			if n := len(at.FindAllString(help, -1)); n != 1 && flag.Name != "help" {
				t.Errorf("%s: --%s comes %d times in the help", c.Name(), flag.Name, n)
			}
		})
		defaults := strings.Contains(help, "(default lstm)")
		if resumes := c.Name() == "resume"; defaults == resumes {
			t.Errorf("%s: the help shows the job's defaults: %v", c.Name(), defaults)
		}
		if onCluster := strings.Contains(help, "\nOn Kubernetes:\n"); onCluster ==
			(c.Name() == "train") {
			t.Errorf("%s: the help has a group for Kubernetes: %v", c.Name(), onCluster)
		}
	}
}
