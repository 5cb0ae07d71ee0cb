package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/job/recipe"
)

func recipesCommand() *cobra.Command {
	var measure bool
	var device string
	c := &cobra.Command{
		Use:   "recipes [NAME]",
		Short: "List jobs of the literature with their published results, or show one",
		Long: "Without a name, lists what `rondo train --recipe` takes, with the published\n" +
			"result. With a name, shows the source, the corpus, where the job is not the\n" +
			"published one, and its keys, which --config takes as they are.",
		Example: "  rondo recipes --measure\n" +
			"  rondo train --recipe zaremba-2014-small --corpus ptb.train.txt \\\n" +
			"    --eval-corpus ptb.valid.txt",
		Args: cobra.MaximumNArgs(1),
	}
	c.Flags().BoolVar(&measure, "measure", false, "measure some steps of each, about half a "+
		"minute on a CPU, and estimate the time that it takes on this machine")
	c.Flags().StringVar(&device, "device", "auto", "what to measure: auto (a GPU if there is "+
		"one), cpu, cuda or cuda:N")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("device") && !measure {
			return app.Usagef("--device is for --measure: give it, or leave --device out")
		}
		names := recipe.Names()
		if len(args) > 0 {
			names = args
		}
		var all []*recipe.Recipe
		for _, name := range names {
			r, err := recipe.Find(name)
			if err != nil {
				return err
			}
			if r == nil {
				return app.Usagef("%q is no recipe: `rondo recipes` lists them", name)
			}
			all = append(all, r)
		}
		var times []string
		if measure {
			var err error
			if times, err = recipeTimes(cmd.Context(), all, device); err != nil {
				return err
			}
		}
		if len(args) > 0 {
			return showRecipe(cmd.OutOrStdout(), all[0], times)
		}
		return listRecipes(cmd.OutOrStdout(), all, times)
	}
	return c
}

// listRecipes prints a row for each. times may be nil.
func listRecipes(out io.Writer, all []*recipe.Recipe, times []string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i, r := range all {
		fmt.Fprintf(w, "%s\t", r.Name)
		if times != nil {
			fmt.Fprintf(w, "%s\t", times[i])
		}
		fmt.Fprintf(w, "%s (%s)\n", r.Expected, r.Row)
	}
	return w.Flush()
}

// showRecipe prints all of one.
func showRecipe(out io.Writer, r *recipe.Recipe, times []string) error {
	keys, err := yaml.JSONToYAML(r.Job)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "# %s\n# %s\n# expected: %s\n# corpus: %s\n", r.Source, r.Row, r.Expected,
		r.Corpus.Files)
	for _, line := range r.Differs {
		fmt.Fprintf(out, "# differs: %s\n", line)
	}
	for _, text := range times {
		fmt.Fprintf(out, "# time: %s\n", text)
	}
	_, err = out.Write(keys)
	return err
}

// recipeTimes measures steps of each recipe's size on a device, and returns how long all epochs
// take at that speed.
func recipeTimes(
	ctx context.Context, all []*recipe.Recipe, device string,
) (times []string, err error) {
	chosen, err := job.Choose(device)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		spec, err := jobspec.FromRecipe(r)
		if err != nil {
			return nil, err
		}
		speed, err := trainingSpeed(ctx, chosen.Of(0), spec, int(max(2, r.Corpus.Vocabulary)))
		if err != nil {
			return nil, fmt.Errorf("recipe %s: %w", r.Name, err)
		}
		seconds := float64(r.Corpus.Training*spec.Epochs) / speed
		times = append(times, about(time.Duration(seconds*float64(time.Second))))
	}
	return times, nil
}

// about is a duration with two digits.
func about(d time.Duration) string {
	hours := d.Hours()
	switch {
	case hours >= 48:
		return fmt.Sprintf("%.1f days", hours/24)
	case hours >= 1:
		return fmt.Sprintf("%.1f h", hours)
	case hours*60 >= 1:
		return fmt.Sprintf("%.0f min", hours*60)
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}
