package jobspec

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// flagGroup is a part of a command's help.
type flagGroup struct {
	title string
	flags []string
}

// flagGroups is the order of flags in the help of commands that take a job. A command's help leaves
// out the flags that it lacks.
func flagGroups() []flagGroup {
	return []flagGroup{
		{"To begin with", []string{"corpus", "cell", "hidden", "layers", "dropout", "epochs",
			"steps", "batch", "lr", "workers", "device", "checkpoint-dir"}},
		{"On Kubernetes", []string{"kubeconfig", "context", "namespace", "create-namespace",
			"image", "image-pull-policy", "image-pull-secret", "gpus-per-worker",
			"cpus-per-worker", "memory-per-worker", "grace-period", "node-selector", "toleration",
			"labels", "annotations", "env", "priority-class", "pod-template", "spot", "queue",
			"jobset", "monitoring", "ha", "ttl-after-finished", "etcd-storage", "s3-secret",
			"s3-identity", "s3-cidr", "wait", "timeout", "dry-run"}},
		{"Data", []string{"tokenizer", "vocabulary-size", "normalize", "eos", "text-field",
			"shuffle-documents", "min-frequency", "max-tokens", "validation-fraction",
			"eval-corpus", "vectors",
			"sampling", "max-length", "max-examples"}},
		{"Model", []string{"task", "embed", "bidirectional", "hidden-backward", "blanks", "pool",
			"decoder-context", "vector-as", "ends", "attention", "feedback", "target",
			"spectral-radius", "leak", "input-scale", "ridge", "washout", "order", "smoothing",
			"memory-rows", "memory-width", "heads", "shift", "controller", "hops", "tying",
			"position-encoding", "temporal-encoding", "hard-attention", "tree", "tree-cell",
			"states", "pseudo-count",
			"dropout-input", "dropout-locked", "dropout-output", "dropout-words", "weight-drop",
			"activation-l2", "temporal-l2", "layer-norm", "skip-connections", "deep-input",
			"deep-transition", "deep-output", "skip-through-time", "periods",
			"sequences", "label-smoothing", "teacher-forcing",
			"teacher-forcing-steps", "teacher-forcing-choice", "tie-weights",
			"adaptive-softmax", "init", "forget-bias", "i-know"}},
		{"Optimizer", []string{"optimizer", "lr-schedule", "warmup-steps", "lr-decay",
			"lr-step-every", "lr-hold", "lr-patience", "lr-min", "momentum", "beta1", "beta2",
			"rho", "epsilon", "weight-decay", "average", "omega", "clip", "clip-by", "clip-scope"}},
		{"How a step is computed", []string{"bptt", "bptt-random", "accumulate", "precision",
			"threads", "recompute", "reduce", "lane-groups", "shard-optimizer", "shard-copies",
			"seed"}},
		{"Checkpoints and output", []string{"checkpoint-every", "checkpoint-keep", "resume",
			"eval-every", "early-stop", "sample-every", "sample-prefix", "sample-tokens",
			"sample-temperature", "dashboard", "json", "log-format", "verbose", "trace"}},
		{"Job and cluster", []string{"job", "config", "recipe", "time", "etcd", "tls", "insecure",
			"local-workers", "min-workers", "max-workers"}},
		{"Ring", []string{"link", "topology", "intra-host", "ring-order", "copies",
			"bucket-bytes"}},
		{"Slow links", []string{"sync-every", "outer-optimizer", "outer-lr", "outer-momentum",
			"wire", "error-feedback", "sparse-rows", "compress", "compress-after"}},
		{"Faults", []string{"restarts", "nonfinite", "nonfinite-limit", "check-every",
			"evict-stragglers", "inject", "audit-dir"}},
		{"Deadlines", []string{"chunk-timeout", "lease-ttl", "step-timeout", "regroup-timeout",
			"join-timeout", "pause-timeout"}},
	}
}

// GroupsOf returns the titles of the groups with a flag. There should be one.
func GroupsOf(flag string) []string {
	var titles []string
	for _, g := range flagGroups() {
		if slices.Contains(g.flags, flag) {
			titles = append(titles, g.title)
		}
	}
	return titles
}

// Columns of the help: the start of a flag's name and of its text, and the end of lines.
const (
	nameColumn = 2
	textColumn = 30
	helpWidth  = 96
)

// Usages is the help for a command's flags, in groups. Flags without a group come last.
func Usages(set *pflag.FlagSet) string {
	groups := append(flagGroups(), flagGroup{title: "Other"})
	set.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "help" && len(GroupsOf(flag.Name)) == 0 {
			last := &groups[len(groups)-1]
			last.flags = append(last.flags, flag.Name)
		}
	})
	var out strings.Builder
	for _, g := range groups {
		var lines []string
		for _, name := range g.flags {
			if flag := set.Lookup(name); flag != nil && !flag.Hidden {
				lines = append(lines, usage(flag))
			}
		}
		if len(lines) > 0 {
			out.WriteString("\n" + g.title + ":\n" + strings.Join(lines, ""))
		}
	}
	return out.String()
}

// usage is a flag's help: name, type, text, default.
func usage(flag *pflag.Flag) string {
	kind, text := pflag.UnquoteUsage(flag)
	name := "--" + flag.Name
	if flag.Shorthand != "" {
		name = "-" + flag.Shorthand + ", " + name
	}
	if kind != "" {
		name += " " + kind
	}
	words := strings.Fields(text)
	switch flag.DefValue {
	case "", "0", "0s", "false", "[]": // the text explains these
	default:
		words = append(words, "(default "+flag.DefValue+")")
	}
	head := fmt.Sprintf("%*s%s", nameColumn, "", name)
	if len(head) >= textColumn {
		head += "\n"
	}
	var out strings.Builder
	for _, line := range wrap(words, helpWidth-textColumn) {
		if strings.HasSuffix(head, "\n") {
			out.WriteString(head)
			head = ""
		}
		fmt.Fprintf(&out, "%-*s%s\n", textColumn, head, line)
		head = ""
	}
	return out.String()
}

// wrap joins words to lines of at most width characters. A longer word gets its own line, or
// several if it is a list of choices.
func wrap(words []string, width int) []string {
	lines := []string{""}
	for _, word := range words {
		for utf8.RuneCountInString(word) > width {
			at := strings.LastIndexByte(word[:width], '|') + 1
			if at == 0 {
				break
			}
			lines, word = append(lines, word[:at]), word[at:]
		}
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	return lines
}
