package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rondo/compute"
	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

func modelsCommand() *cobra.Command {
	data := job.Extent{Tokens: 28, Outputs: 10}
	c := &cobra.Command{
		Use:   "models [CELL | TASK]",
		Short: "List cells, tasks and parts of networks, or show a network's equations and size",
		Long: "Without a name, lists every cell (--cell), task (--task) and part of a network,\n" +
			"with its source. With a cell's or a task's name, shows the cell's equations, and\n" +
			"the tensors of the network that the flags give, counted as training makes them.",
		Example: "  rondo models lstm --hidden 512 --layers 2 --vocab 28\n" +
			"  rondo models translate --cell gru --hidden 256 --vocab 5000 --outputs 4000",
		Args: cobra.MaximumNArgs(1),
	}
	groupFlags(c)
	c.Flags().IntVar(&data.Tokens, "vocab", data.Tokens,
		"tokens that it reads; of a series or of vectors: columns, and 1")
	c.Flags().IntVar(&data.Outputs, "outputs", data.Outputs,
		"what it predicts: labels, columns or tokens of the target; ngram: different n-grams")
	all := pflag.NewFlagSet("job", pflag.ContinueOnError)
	flags := jobspec.AddFlags(all)
	all.VisitAll(func(flag *pflag.Flag) {
		if slices.Contains(jobspec.GroupsOf(flag.Name), "Model") ||
			slices.Contains([]string{"cell", "hidden", "layers", "vectors"}, flag.Name) {
			c.Flags().AddFlag(flag)
		}
	})
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return listModels(cmd.OutOrStdout())
		}
		kind := "task"
		if slices.Contains(compute.CellNames(), args[0]) {
			kind = "cell"
		} else if !slices.Contains(task.Names(), args[0]) {
			return app.Usagef("%q is no cell and no task: `rondo models` lists them", args[0])
		}
		if err := all.Set(kind, args[0]); err != nil {
			return err
		}
		if args[0] == task.Describe && !all.Changed("vectors") {
			if err := all.Set("vectors", "vectors.npy"); err != nil { // it is not read
				return err
			}
		}
		spec, err := flags.Spec()
		if err != nil {
			return err
		}
		return showModel(cmd.OutOrStdout(), spec, data)
	}
	return c
}

// listModels writes a line for each cell, task and part of networks.
func listModels(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, cell := range compute.Cells() {
		text := cell.Text()
		equations := strings.Split(text.Equations, "; ")
		fmt.Fprintf(table, "--cell %v\t%s\t%s\n", cell, equations[len(equations)-1], text.Source)
	}
	for _, cell := range model.TreeCells() {
		equations := strings.Split(cell.Equations, "; ")
		fmt.Fprintf(table, "--tree-cell %s\t%s\t%s\n", cell.Name, equations[len(equations)-1],
			cell.Source)
	}
	for _, name := range task.Names() {
		predicts, source := task.About(name)
		fmt.Fprintf(table, "--task %s\t%s\t%s\n", name, predicts, source)
	}
	for _, part := range model.Parts() {
		fmt.Fprintf(table, "--%s\t%s\t%s\n", part.Flag, part.Does, part.Source)
	}
	return table.Flush()
}

// showModel writes the equations, shapes and parameters of a job's network.
func showModel(out io.Writer, spec *rondov1.JobSpec, data job.Extent) error {
	data.Grams = data.Outputs
	network, err := job.NetworkOf(spec, data)
	if err != nil {
		return err
	}
	predicts, source := task.About(spec.Task)
	fmt.Fprintf(out, "--task %s: %s. %s\n", spec.Task, predicts, source)
	if slices.Contains(task.Layered(), spec.Task) {
		cell, err := compute.ParseCell(spec.Cell)
		if err != nil {
			return err
		}
		showCell(out, cell)
	}
	if spec.Task == task.Tree {
		cell, err := model.ParseTreeCell(spec.TreeCell)
		if err != nil {
			return err
		}
		text := model.TreeCells()[cell]
		fmt.Fprintf(out, "--tree-cell %s: %s\n\n", text.Name, text.Source)
		showEquations(out, text.Equations)
	}
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "PARAMETERS\tSHAPE\t TENSOR")
	for _, t := range network.Tensors {
		fmt.Fprintf(table, "%d\t%s\t %s\n", t.Len, strings.Join(strings.Fields(fmt.Sprint(t.Shape)),
			" x "), t.Name)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	const floatBytes = 4
	n := model.Count(network.Tensors)
	_, err = fmt.Fprintf(out, "\n%d parameters, %.1f MiB as float32; a lane carries %d floats of "+
		"state\n", n, float64(n)*floatBytes/(1<<20), network.StateSize)
	return err
}

// showCell writes a cell's equations with their letters.
func showCell(out io.Writer, cell compute.Cell) {
	text := cell.Text()
	fmt.Fprintf(out, "--cell %v: %s\n\n", cell, text.Source)
	showEquations(out, text.Equations)
	fmt.Fprint(out, "\na = W_ih x + b_ih + W_hh h + b_hh; x: input [D]; h: output and state [H]; "+
		"h', c': after the step;\nσ: logistic function; ⊙: elementwise product")
	if cell.States() == 2 {
		fmt.Fprint(out, "; c: cell state [H]")
	}
	if text.Gates != "" {
		fmt.Fprintf(out, ".\nThe weights have %d x H rows, of the gates %s", cell.Gates(),
			text.Gates)
	}
	fmt.Fprintln(out, ".")
}

// showEquations writes equations that "; " separates, a line each.
func showEquations(out io.Writer, equations string) {
	for _, equation := range strings.Split(equations, "; ") {
		fmt.Fprintf(out, "    %s\n", equation)
	}
}
