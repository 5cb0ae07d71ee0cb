package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"rondo/compute/cpu"
	"rondo/internal/app"
	"rondo/job"
)

func devicesCommand() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "devices",
		Short: "List this machine's devices",
		Long: "Lists the processor and the GPUs of this machine under their --device names.\n" +
			"CUDA_VISIBLE_DEVICES selects and orders the GPUs that a process sees.",
	}
	c.Flags().StringVarP(&format, "output", "o", "", "json; default: for people")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if format != "" && format != "json" {
			return app.Usagef("--output %q is not json", format)
		}
		found, err := findDevices()
		if err != nil {
			return err
		}
		if format == "json" {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(found)
		}
		return found.print(cmd.OutOrStdout())
	}
	return c
}

// devices are this machine's.
type devices struct {
	CPU  processor `json:"cpu"`
	CUDA bool      `json:"cuda"` // whether this binary can compute on GPUs
	GPUs []job.GPU `json:"gpus"`
	// NCCL is the library's version, or the reason why there is none.
	NCCL string `json:"nccl,omitempty"`
	// NCCLLibrary is the file of NCCL.
	NCCLLibrary string `json:"nccl_library,omitempty"`
	// Reason says why there are no GPUs, if that is known.
	Reason string `json:"reason,omitempty"`
}

type processor struct {
	Name    string `json:"name"`
	Threads int    `json:"threads"`
}

// findDevices lists the devices. Without a GPU there is still the processor.
func findDevices() (devices, error) {
	threads, err := job.Use{}.Count()
	if err != nil {
		return devices{}, err
	}
	device, err := cpu.New(cpu.Config{Threads: threads})
	if err != nil {
		return devices{}, err
	}
	defer device.Close()
	found := devices{CPU: processor{Name: device.Name(), Threads: device.Threads()},
		CUDA: job.CUDA, GPUs: []job.GPU{}}
	gpus, err := job.InspectGPUs()
	found.GPUs = append(found.GPUs, gpus...)
	switch {
	case err != nil:
		found.Reason = err.Error()
	case len(gpus) == 0:
		found.Reason = "NVIDIA's driver shows none to this process (see nvidia-smi, and " +
			"CUDA_VISIBLE_DEVICES)"
	default:
		if found.NCCL, found.NCCLLibrary, err = job.NCCL(); err != nil {
			found.NCCL = fmt.Sprintf("not found: %v", err)
		}
	}
	return found, nil
}

// print writes a table, and the reason if it has no GPU.
func (d devices) print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DEVICE\tNAME\tFREE\tMEMORY\tCAPABILITY\tDRIVER\tCUBLAS\tUUID")
	fmt.Fprintf(table, "cpu\t%s\t-\t-\t-\t-\t-\t-\n", d.CPU.Name)
	for _, g := range d.GPUs {
		library := "not found"
		if g.Problem != "" {
			library = "-"
		} else if g.CUBLAS {
			library = "found"
		}
		fmt.Fprintf(table, "cuda:%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Index, g.Name,
			gibibytes(g.Free), gibibytes(g.Memory), g.Capability, g.Driver, library, g.UUID)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, g := range d.GPUs {
		switch {
		case g.Problem != "":
			fmt.Fprintf(out, "cuda:%d cannot be used: %s\n", g.Index, g.Problem)
		case g.CUBLAS:
			fmt.Fprintf(out, "cuda:%d multiplies with %s\n", g.Index, g.Library)
		default:
			fmt.Fprintf(out, "cuda:%d has no cuBLAS: layers of hidden 1024 are slower by about "+
				"40%%; install it (pip install nvidia-cublas), or name its folder in "+
				"LD_LIBRARY_PATH\n", g.Index)
		}
	}
	if d.NCCL != "" {
		fmt.Fprintln(out, strings.TrimSpace("NCCL, which sums between GPUs of a host: "+d.NCCL+
			" "+d.NCCLLibrary))
	}
	if d.Reason != "" {
		fmt.Fprintln(out, "no GPUs:", d.Reason)
	}
	return nil
}

func gibibytes(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
