package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job"
	"rondo/k8s/kube"
	"rondo/task"
	"rondo/task/lm"
	"rondo/telemetry"
)

// addUseFlags adds the flags of commands that use a trained model.
func addUseFlags(flags *pflag.FlagSet) *job.Use {
	use := &job.Use{}
	flags.StringVar(&use.Device, "device", "auto",
		"where to compute: auto (a GPU if there is one), cpu, cuda or cuda:N")
	flags.StringVar(&use.Precision, "precision", "",
		"operands of products: fp32 or bf16, or on a GPU tf32 or fp16; default: the training's, "+
			"or fp32 if that needs a GPU and this is a CPU")
	flags.IntVar(&use.Threads, "threads", 0,
		"threads; 0: the cores of this machine")
	return use
}

// addCheckpointFlag adds the flag that names a trained network.
func addCheckpointFlag(c *cobra.Command, location *string) {
	c.Flags().StringVar(location, "checkpoint", "",
		"folder, blob URL or pvc://CLAIM/PATH of checkpoints (the best is used), or one "+
			"checkpoint's own folder; default: the newest run under runs in the current folder")
	kube.AddConnectFlags(c.Flags())
}

func evalCommand() *cobra.Command {
	var location, source string
	var asJSON bool
	c := &cobra.Command{
		Use: "eval",
		Short: "Measure a trained model on other data: perplexity, accuracy and F1, BLEU, or " +
			"squared error",
	}
	flags := c.Flags()
	addCheckpointFlag(c, &location)
	flags.StringVar(&source, "corpus", "", "data to evaluate on: a path, a blob URL, or "+
		corpus.Opticks)
	how, use := addSearchFlags(c), addUseFlags(flags)
	flags.StringVar(&how.Vectors, "vectors", "",
		"vectors that the rows of --corpus name, for --task describe; default: the training's")
	reading := addReadingFlags(flags)
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	app.Require(c, "corpus")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, flag := range []string{"cache-theta", "cache-lambda"} {
			if cmd.Flags().Changed(flag) && reading.Cache == 0 {
				return app.Usagef("--%s is for --cache: give its number of tokens", flag)
			}
		}
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		if how.Reading = *reading; reading.Cache == 0 { // their defaults say nothing
			how.Reading.CacheTheta, how.Reading.CacheLambda = 0, 0
		}
		result, err := evaluate(cmd, location, source, *use, *how)
		if err != nil {
			return err
		}
		if asJSON {
			return telemetry.NewJSONView(cmd.OutOrStdout()).Show(result)
		}
		if result.Metrics != nil {
			return printMetrics(cmd.OutOrStdout(), result)
		}
		perWord := ""
		if result.PerplexityPerWord > 0 {
			perWord = fmt.Sprintf("perplexity %.4f per word\n", result.PerplexityPerWord)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "perplexity %.4f\n%sloss %.4f nats/token\n"+
			"%.4f bits/token\n%.4f bits/character\n%.4f bits/byte\n%d tokens\n", result.Perplexity,
			perWord, result.Loss, result.BitsPerToken, result.BitsPerCharacter, result.BitsPerByte,
			result.Tokens)
		return err
	}
	return c
}

// addReadingFlags adds the flags of how a language model reads a text.
func addReadingFlags(flags *pflag.FlagSet) *lm.Reading {
	r := &lm.Reading{}
	flags.IntVar(&r.Rows, "rows", 0, "rows that a text is cut into and that are read side by "+
		"side, each from a zero state; 1: one stream, as papers read it; 0: 8, or fewer of a "+
		"short text")
	flags.Float64Var(&r.DynamicRate, "dynamic", 0, "dynamic evaluation (Krause et al. 2018): "+
		"learning rate of an SGD step by each segment of --bptt tokens once it is scored; 0: none")
	flags.Float64Var(&r.DynamicDecay, "dynamic-decay", 0, "share by which each such step goes "+
		"back to the trained parameters")
	flags.IntVar(&r.Cache, "cache", 0, "tokens of the neural cache (Grave et al. 2017); 0: none")
	flags.Float64Var(&r.CacheTheta, "cache-theta", 0.3, "θ of the cache, by which it multiplies "+
		"the inner products of outputs")
	flags.Float64Var(&r.CacheLambda, "cache-lambda", 0.1, "λ of the cache, its share of the "+
		"probabilities")
	return r
}

// sayStep prints which of a folder's checkpoints is used, and why.
func sayStep(cmd *cobra.Command, t *job.Trained) {
	if t.Why != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "using "+t.Why)
	}
}

// printMetrics prints the result of a task with metrics of its own.
func printMetrics(out io.Writer, e telemetry.Eval) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	format, unit := "%s\t%.4f\n", " nats"
	if e.Metrics[0].Name == "mse" {
		format, unit = "%s\t%.6g\n", " (mean squared error of standardised columns)"
	}
	for _, m := range e.Metrics {
		fmt.Fprintf(w, format, m.Name, m.Value)
	}
	if e.Metrics[0].Name != "mse" {
		fmt.Fprintf(w, "perplexity\t%.4f\n", e.Perplexity)
	}
	fmt.Fprintf(w, "loss\t%.4f%s\ntargets\t%d\n", e.Loss, unit, e.Tokens)
	if len(e.Confusion) > 0 {
		fmt.Fprintf(w, "\nright \\ predicted\t%s\n", strings.Join(e.Labels, "\t"))
		for i, row := range e.Confusion {
			fmt.Fprint(w, e.Labels[i])
			for _, n := range row {
				fmt.Fprintf(w, "\t%d", n)
			}
			fmt.Fprintln(w)
		}
	}
	return w.Flush()
}

// checkRead refuses flags of rondo eval that the network's task does not read.
func checkRead(cmd *cobra.Command, of string) error {
	for _, flag := range []struct {
		name  string
		tasks []string
	}{
		{"beam", []string{task.Translate, task.Describe}},
		{"length-penalty", []string{task.Translate, task.Describe}},
		{"vectors", []string{task.Describe}},
	} {
		if cmd.Flags().Changed(flag.name) && !slices.Contains(flag.tasks, of) {
			return app.Usagef("--%s is for networks of --task %s, and this one's is %s: leave it "+
				"out", flag.name, strings.Join(flag.tasks, " or "), of)
		}
	}
	return nil
}

// evaluate measures a trained network on other data.
func evaluate(
	cmd *cobra.Command, location, source string, use job.Use, how job.Search,
) (telemetry.Eval, error) {
	t, err := job.LoadTrained(cmd.Context(), location, use, task.Names()...)
	if err != nil {
		return telemetry.Eval{}, err
	}
	defer t.Close()
	if err := checkRead(cmd, t.Spec.Task); err != nil {
		return telemetry.Eval{}, err
	}
	sayStep(cmd, t)
	return t.Evaluate(cmd.Context(), source, how)
}
