package jobspec

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

func parse(t *testing.T, args ...string) (*rondov1.JobSpec, error) {
	t.Helper()
	set := pflag.NewFlagSet("train", pflag.ContinueOnError)
	flags := AddFlags(set)
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	return flags.Spec()
}

func TestDefaultIsValid(t *testing.T) {
	if err := Validate(Default()); err != nil {
		t.Fatal(err)
	}
}

func TestFlagsNamedByTheProject(t *testing.T) {
	set := pflag.NewFlagSet("train", pflag.ContinueOnError)
	AddFlags(set)
	for _, name := range strings.Fields(`corpus tokenizer normalize min-frequency max-tokens cell
		hidden layers embed dropout dropout-input tie-weights init forget-bias batch bptt sampling
		optimizer lr lr-schedule warmup-steps weight-decay clip clip-by clip-scope epochs steps
		seed workers device checkpoint-dir checkpoint-every resume eval-corpus validation-fraction
		eval-every sample-every sample-prefix nonfinite-limit config label-smoothing
		teacher-forcing`) {
		if set.Lookup(name) == nil {
			t.Errorf("flag --%s is gone", name)
		}
	}
}

// TestHelpNamesNoType: what is between backquotes in a flag's help is shown as its value's type.
func TestHelpNamesNoType(t *testing.T) {
	for _, f := range fields() {
		if strings.Contains(f.flag.Help, "`") {
			t.Errorf("--%s: %s", f.flagName(), f.flag.Help)
		}
	}
}

// writeYAML writes a job's YAML file.
func writeYAML(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigThenFlags(t *testing.T) {
	text := "hidden: 64\nlr_schedule: cosine\nchunk-timeout: 3s\ntieWeights: true\nembed: 64\n" +
		"resume: auto\njoin_timeout: 5m\nlr: 1e0\n" +
		"epochs: 0\nsteps: 7\n"
	path := writeYAML(t, text)
	spec, err := parse(t, "--config", path, "--hidden", "32", "--seed=18446744073709551615")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Hidden, want.LrSchedule, want.TieWeights, want.Embed = 32, "cosine", true, 64
	want.ChunkTimeout.Seconds, want.Epochs, want.Steps, want.Lr = 3, 0, 7, 1
	want.Seed = 1<<64 - 1
	if !proto.Equal(spec, want) {
		t.Errorf("got  %v\nwant %v", spec, want)
	}
}

// wrongFlag is a command line, and the start of its error.
type wrongFlag struct{ args, want string }

func TestWrongFlags(t *testing.T) {
	checkWrongFlags(t, []wrongFlag{
		{"--cell lstmx", `--cell "lstmx" is not one of rnn, rnn-relu, gru, gru-reset-before, lstm`},
		{"--task seq2seq", `--task "seq2seq" is not one of lm`},
		{"--precision fp8", `--precision "fp8" is not one of fp32, bf16, tf32, fp16`},
		{"--precision fp16 --device cpu", "--precision fp16 needs a GPU, and this would compute " +
			"on a CPU: give --device cuda, or --precision fp32 or bf16"},
		{"--precision tf32 --device cpu", "--precision tf32 needs a GPU"},
		{"--device tpu", `--device "tpu" is not one of auto, cpu, cuda, cuda:N`},
		{"--device cuda:x", `--device "cuda:x" is not one of`},
		{"--device cuda:-1", `--device "cuda:-1" is not one of`},
		{"--device cuda:+1", `--device "cuda:+1" is not one of`},
		{"--device cuda:1025", `--device "cuda:1025" is not one of`},
		{"--workers auto", `--workers "auto" is not a whole number`},
		{"--recompute -1", "--recompute -1 is below its least value, 0"},
		{"--hidden 0", "--hidden 0 is below its least value, 1"},
		{"--lr fast", `--lr "fast" is not a number`},
		{"--lr NaN", "--lr NaN is not finite"},
		{"--lease-ttl 5", `--lease-ttl "5" is not a duration such as 10s or 5m`},
		{"--lease-ttl -5s", "--lease-ttl -5s must be positive"},
		{"--batch 2 --workers 3", "--batch 2 is smaller than --workers 3"},
		{"--batch 2 --max-workers 3", "--batch 2 is smaller than --max-workers 3"},
		{"--min-workers 3", "--min-workers 3 is above --workers 2"},
		{"--max-workers 1", "--max-workers 1 is below --workers 2"},
		{"--link carrier", `--link "carrier" is not one of auto, tcp, unix, shm`},
		{"--link unix --intra-host grpc", "--intra-host grpc and --link unix both set the links: " +
			"leave --intra-host out"},
		{"--evict-stragglers 1", "--evict-stragglers 1 would evict workers that are as fast"},
		{"--evict-stragglers 3 --check-every 0", "--evict-stragglers needs --check-every above 0"},
		{"--chunk-timeout 99ms", "--chunk-timeout 99ms is too short for any machine: give at " +
			"least 100ms"},
		{"--accumulate 0", "--accumulate 0 is below its least value, 1"},
		{"--accumulate 5000000", "--accumulate 5000000 is above its greatest value, 1048576"},
		{"--reduce tree", `--reduce "tree" is not one of ring, canonical`},
		{"--lane-groups 4", "--lane-groups 4 is for --reduce canonical and --clip-scope group"},
		{"--nonfinite step --clip 0", "--nonfinite step takes a step of the norm --clip"},
		{"--nonfinite step --clip-by value", "--nonfinite step takes a step of the norm --clip"},
		{"--nonfinite step --shard-optimizer", "--nonfinite step is for updates of all"},
		{"--omega 2", "--omega is for --cell rnn, without --deep-transition"},
		{"--omega 2 --cell rnn --recompute 5", "--omega is for --cell rnn, without"},
		{"--omega 2 --cell rnn --device cuda", "--device cuda: --omega computes on the CPU"},
		{"--clip-scope group --lane-groups 5", "--lane-groups 5 must divide --batch 32"},
		{"--clip-scope group --workers 9", "9 workers cannot share 8 groups of lanes"},
		{"--clip-scope group --batch 11 --max-workers 3", "3 workers cannot share 1 groups"},
		{"--reduce canonical", "--reduce canonical gives the same weights on any number of " +
			"workers, and --clip-scope worker clips by worker"},
		{"--bucket-bytes 1000", "--bucket-bytes 1000 is for sums that begin during the backward " +
			"pass, and --clip-scope worker needs"},
		{"--bucket-bytes 1000 --clip 0 --sync-every 4", "--bucket-bytes 1000 is for sums that " +
			"begin during the backward pass, and --sync-every 4"},
		{"--bucket-bytes 1000 --clip-scope global --compress topk:0.1", "--bucket-bytes 1000 is " +
			"for sums that begin during the backward pass, and --compress topk:0.1"},
		{"--bucket-bytes 1000 --clip-scope global --reduce canonical", "--bucket-bytes 1000 is " +
			"for sums that begin during the backward pass, and --reduce canonical"},
		{"--reduce canonical --clip-scope global --intra-host nccl", "--intra-host nccl adds"},
		{"--compress topk:0.1 --topology hierarchical",
			"--compress topk:0.1 has each worker send to all others"},
	})
}

func TestMoreWrongFlags(t *testing.T) {
	checkWrongFlags(t, []wrongFlag{
		{"--reduce canonical --clip-scope global --topology hierarchical",
			"--reduce canonical adds up in one order around one ring"},
		{"--reduce canonical --clip-scope global --wire bf16", "--reduce canonical adds up whole"},
		{"--shard-copies 2", "--shard-copies 2 is for --shard-optimizer"},
		{"--shard-optimizer --shard-copies 3", "--shard-copies 3 is above its greatest value, 2"},
		{"--shard-optimizer --reduce canonical --clip-scope global", "--reduce canonical " +
			"needs whole gradients, and with --shard-optimizer each worker has the sum of its " +
			"own range only, in fp32 and around one ring: give --reduce ring, or leave out"},
		{"--shard-optimizer --sync-every 4", "--sync-every 4 needs whole gradients"},
		{"--shard-optimizer --compress topk:0.1", "--compress topk:0.1 needs whole gradients"},
		{"--shard-optimizer --wire bf16", "--wire bf16 needs whole gradients"},
		{"--shard-optimizer --sparse-rows always", "--sparse-rows always needs whole"},
		{"--shard-optimizer --topology hierarchical", "--topology hierarchical needs whole"},
		{"--shard-optimizer --intra-host nccl", "--intra-host nccl needs whole gradients"},
		{"--shard-optimizer --bucket-bytes 1000 --clip 0", "--bucket-bytes 1000 is for sums that " +
			"begin during the backward pass, and --shard-optimizer sums all of it at once"},
		{"--inject kill", `--inject: "kill": rank= is missing: give rank=N`},
		{"--audit-dir s3://bucket/a", "--audit-dir s3://bucket/a: logs are appended to"},
		{"--tie-weights", "--tie-weights needs an embedding"},
		{"--task tree --tree-cell bag --hidden 8 --embed 4", "--hidden 8: the nodes of " +
			"--tree-cell bag are as wide as --embed, 4: leave --hidden out"},
		{"--sync-every 4 --clip-scope global", "--clip-scope global needs the workers' gradients"},
		{"--sync-every 4 --reduce canonical", "--reduce canonical cuts the batch into groups"},
		{"--sync-every 4 --clip 0 --clip-scope group", "--clip-scope group cuts the batch"},
		{"--sync-every 4 --sparse-rows always", "--sparse-rows always is for gradients"},
		{"--sync-every 4 --outer-optimizer sgd --outer-lr 0", "--outer-lr 0 would train nothing"},
		{"--epochs 0", "--epochs and --steps are both 0"},
		{"--resume yesterday", `--resume "yesterday" is not auto, never or the step`},
		{"--resume 12", "--resume 12 needs the --checkpoint-dir that holds that step"},
		{"--early-stop 3 --validation-fraction 0", "--early-stop needs something to evaluate on"},
		{"--early-stop -1", "--early-stop -1 is below its least value, 0"},
		{"--eval-every 5 --validation-fraction 0", "--eval-every needs something to evaluate on"},
		{"--checkpoint-every 5 --checkpoint-dir none", "--checkpoint-every 5 needs a folder"},
		{"--dropout-input 0.5 --hidden 64", "--dropout-input drops elements of the embedding: " +
			"set --embed, for example --embed 64"},
		{"--task translate --teacher-forcing-steps 9", "--teacher-forcing-steps 9 is for"},
		{"--task translate --feedback hidden --teacher-forcing 0.5", "--teacher-forcing 0.5 ch"},
		{"--dropout-locked --dropout 0", "--dropout-locked is for a --dropout, --dropout-input or"},
		{"--i-know", "--i-know is for --bidirectional"},
		{"--wire fp8", `--wire "fp8" is not one of fp32, bf16, fp16`},
		{"--compress zip", `--compress "zip" is not none, topk:SHARE or powersgd:RANK`},
		{"--compress topk", "--compress topk: topk: takes the share that travels, above 0"},
		{"--compress topk:1.5", "--compress topk:1.5: topk: takes the share"},
		{"--compress topk:NaN", "--compress topk:NaN: topk: takes the share"},
		{"--compress powersgd:0", "--compress powersgd:0: powersgd: takes a rank from 1 to 64"},
		{"--compress powersgd:65", "--compress powersgd:65: powersgd: takes a rank"},
		{"--compress topk:0.1 --wire bf16", "--compress topk:0.1 and --wire bf16 both set the"},
		{"--compress topk:0.1 --sparse-rows always", "--sparse-rows always excludes --compress"},
		{"--wire fp16 --clip 40000", "--wire fp16 has no numbers above 65504"},
		{"--compress-after 9", "--compress-after needs --compress"},
		{"--error-feedback", "--error-feedback adds what --wire or --compress leaves out"},
		{"--compress powersgd:4 --intra-host nccl", "--compress powersgd:4 is for gradients on " +
			"the ring, and --intra-host nccl sums them"},
		{"--wire fp16 --intra-host nccl", "--wire fp16 is for gradients on the ring"},
		{"--sparse-rows always --intra-host nccl", "--sparse-rows always is for gradients on the"},
		{"--sparse-rows always --embed 8 --tie-weights", "--sparse-rows always needs an embedding"},
		{"--config /nowhere.yaml", "--config: open /nowhere.yaml"},
	})
}

func checkWrongFlags(t *testing.T, wrong []wrongFlag) {
	t.Helper()
	for _, c := range wrong {
		t.Run(c.args, func(t *testing.T) {
			_, err := parse(t, strings.Fields(c.args)...)
			usage, is := errors.AsType[*UsageError](err)
			if !is || !strings.HasPrefix(usage.Error(), c.want) {
				t.Errorf("%v (%T), want a UsageError that begins with %q", err, err, c.want)
			}
		})
	}
}

func TestParseCompress(t *testing.T) {
	for text, want := range map[string]Compression{"none": {}, "topk:0.01": {TopK: 0.01},
		"topk:1": {TopK: 1}, "powersgd:4": {PowerSGD: 4}} {
		if got, err := ParseCompress(text); got != want || err != nil {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, args := range []string{"--compress topk:0.1 --error-feedback",
		"--wire bf16 --error-feedback --sparse-rows always", "--wire fp16",
		"--wire fp16 --clip 40000 --clip-scope global", "--wire fp16 --clip 32768"} {
		if _, err := parse(t, strings.Fields(args)...); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestParseDevice(t *testing.T) {
	for text, want := range map[string]Device{"auto": {Auto: true, GPU: -1}, "cpu": {},
		"cuda": {CUDA: true, GPU: -1}, "cuda:0": {CUDA: true}, "cuda:12": {CUDA: true, GPU: 12}} {
		if got, err := ParseDevice(text); got != want || err != nil {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, args := range []string{"--precision fp16", "--precision tf32 --device cuda:1"} {
		if _, err := parse(t, strings.Fields(args)...); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// How many workers auto stands for depends on the flags beside it, in whatever order they come,
// and on what the file says.
func TestAutoWorkers(t *testing.T) {
	path := writeYAML(t, "device: cuda\n")
	for args, want := range map[string]int64{"": 2, "--workers 5": 5, "--workers=auto": 1,
		"--workers auto --device cuda": 8, "--workers auto --config " + path: 8,
		"--workers auto --workers 3": 3, "--workers 3 --workers auto": 1} {
		set := pflag.NewFlagSet("train", pflag.ContinueOnError)
		flags := AddFlags(set)
		flags.AutoWorkers(func(spec *rondov1.JobSpec) (int64, error) {
			if spec.Device == "cuda" {
				return 8, nil
			}
			return 1, nil
		})
		if err := set.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if spec, err := flags.Spec(); err != nil || spec.Workers != want {
			t.Errorf("%q: %d workers, %v; want %d", args, spec.GetWorkers(), err, want)
		}
	}
	set := pflag.NewFlagSet("train", pflag.ContinueOnError)
	flags := AddFlags(set)
	wrong := errors.New("no driver")
	flags.AutoWorkers(func(*rondov1.JobSpec) (int64, error) { return 0, wrong })
	if err := set.Parse([]string{"--workers=auto"}); err != nil {
		t.Fatal(err)
	}
	if _, err := flags.Spec(); !errors.Is(err, wrong) {
		t.Errorf("%v, want %v", err, wrong)
	}
}

// TestRecipe: flags override --config, which overrides the recipe, which overrides the defaults.
func TestRecipe(t *testing.T) {
	path := writeYAML(t, "hidden: 300\nembed: 300\n")
	read := func(args string) (*rondov1.JobSpec, error) {
		set := pflag.NewFlagSet("train", pflag.ContinueOnError)
		flags := AddFlags(set)
		flags.AddRecipe()
		if err := set.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		return flags.Spec()
	}
	spec, err := read("--recipe zaremba-2014-small --embed 64 --eval-corpus a --config " + path)
	if err != nil || spec.Hidden != 300 || spec.Embed != 64 || spec.Bptt != 20 ||
		spec.Optimizer != "sgd" || spec.Seed != 1 {
		t.Errorf("%v, %v", spec, err)
	}
	_, err = read("--recipe zaremba-2014-smal")
	if err == nil || !strings.Contains(err.Error(), "did you mean zaremba-2014-small?") {
		t.Error(err)
	}
}

func TestWrongYAML(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"hidden: [", "job.yaml: not valid YAML"},
		{"hiden: 3", `job.yaml: unknown key "hiden", did you mean hidden?`},
		{"epochen: 3", `job.yaml: unknown key "epochen", did you mean epochs?`},
		{"colour: 3", `job.yaml: unknown key "colour"; the keys are the flags of `},
		{"hidden: many", `job.yaml: --hidden "many" is not a whole number`},
		{"optimizer: null", "job.yaml: optimizer: give one value"},
		{"hidden: [1, 2]", "job.yaml: hidden: give one value"},
		{"- 1", "job.yaml: the top level is not a mapping"},
		{"hidden: 1\nhidden: 2", "job.yaml: not valid YAML"},
	} {
		_, err := FromYAML("job.yaml", []byte(c.text))
		var usage *UsageError
		if !errors.As(err, &usage) || !strings.HasPrefix(usage.Error(), c.want) {
			t.Errorf("%q: error %v does not begin with %q", c.text, err, c.want)
		}
	}
}

func TestIdentityAndDifferences(t *testing.T) {
	base := Identity(Default(), "tokens")
	other := Default()
	other.Workers, other.Lr, other.Epochs, other.CheckpointDir = 4, 0.1, 99, "elsewhere"
	other.Corpus, other.Precision, other.Recompute = "moved.txt", "bf16", 7
	other.IntraHost, other.Link, other.Topology = "grpc", "unix", "flat"
	if Identity(other, "tokens") != base || len(Differences(Default(), other)) != 0 {
		t.Error("workers, lr, epochs, the folder, the corpus's place or how steps are computed " +
			"changed the identity")
	}
	rounds := Default()
	rounds.SyncEvery, rounds.OuterLr, rounds.OuterOptimizer = 16, 0.5, "average"
	if Identity(rounds, "tokens") != base {
		t.Error("rounds that keep nothing of their own changed the identity")
	}
	rounds.OuterOptimizer = "nesterov"
	if got := Differences(rounds, Default()); Identity(rounds, "tokens") == base ||
		!slices.Equal(got, []string{"--outer-optimizer nesterov instead of none"}) {
		t.Errorf("an outer momentum is dropped: %q", got)
	}
	if Identity(other, "other tokens") == base {
		t.Error("another text has the same identity")
	}
	other.Task = "translate"
	if got := Differences(other, Default()); Identity(other, "tokens") == base ||
		!slices.Equal(got, []string{"--task translate instead of lm"}) {
		t.Errorf("another task: %q", got)
	}
	other.Task, other.Hidden, other.Cell = "lm", 32, "gru"
	if Identity(other, "tokens") == base {
		t.Error("another width has the same identity")
	}
	other.Accumulate = 2
	got := strings.Join(Differences(Default(), other), ", ")
	if want := "--cell lstm instead of gru, --hidden 256 instead of 32, " +
		"--accumulate 1 instead of 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzFromYAML(f *testing.F) {
	f.Add([]byte("hidden: 3\nlr: 1e-3\nlease_ttl: 3s"))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if spec, err := FromYAML("job.yaml", text); err == nil {
			_ = Validate(spec) // must not panic
		}
	})
}

func TestLaneGroups(t *testing.T) {
	for args, want := range map[string]int64{
		"":                              0,
		"--clip-scope global":           0,
		"--clip-scope group":            8,
		"--clip-scope group --batch 12": 6,
		"--clip-scope group --batch 7":  7,
		"--reduce canonical --clip 0":   8,
		"--reduce canonical --clip-scope global --batch 64 --lane-groups 16": 16,
	} {
		spec, err := parse(t, strings.Fields(args)...)
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		if got := LaneGroups(spec); got != want {
			t.Errorf("%s: %d groups, want %d", args, got, want)
		}
	}
}

// TestIdentityOfAccumulate: a job of before there was --accumulate is one with 1, and no other.
func TestIdentityOfAccumulate(t *testing.T) {
	spec, before, other := Default(), Default(), Default()
	before.Accumulate, other.Accumulate = 0, 2
	if Identity(spec, "") != Identity(before, "") || len(Differences(spec, before)) != 0 {
		t.Error("--accumulate 1 is another job than one without")
	}
	if Identity(spec, "") == Identity(other, "") || len(Differences(spec, other)) != 1 {
		t.Errorf("--accumulate 2 differs in %q", Differences(spec, other))
	}
}

// TestLayersThatDoNotFit: each is refused in a line that names the flag.
func TestLayersThatDoNotFit(t *testing.T) {
	for args, want := range map[string]string{
		"--skip-connections --layers 1":   "--skip-connections begin at the second layer: set",
		"--task tag --hidden-backward 8":  "--hidden-backward 8 is for --bidirectional",
		"--skip-through-time 4":           "--skip-through-time 4 reads the embedding",
		"--embed 8 --skip-through-time 1": "--skip-through-time 1: every layer reads its last",
		"--periods 1,3":                   "--periods is for --cell clockwork",
		"--cell clockwork --periods 2,1":  "--periods 2,1: give whole numbers",
		"--cell clockwork --hidden 3":     "--periods 1,2,4,8 are 4 groups of units",
		"--leak 0.3":                      "--leak is for --cell leaky-learned or leaky",
		"--cell leaky-learned --leak 1":   "--leak 1: a leak that is learned must begin below 1",
		"--deep-input 1":                  "--deep-input 1 reads the embedding: set --embed",
		"--task lm --ends stop":           "--ends is for --task describe",
		"--task translate --teacher-forcing-choice sample": "--teacher-forcing-choice sample " +
			"is for a --teacher-forcing below 1",
		"--task describe --vectors x.npy --ends length --teacher-forcing 0.5": "--teacher-" +
			"forcing 0.5: with --ends length",
	} {
		var usage *UsageError
		if _, err := parse(t, strings.Fields(args)...); !errors.As(err, &usage) ||
			!strings.HasPrefix(usage.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// Jobs of earlier versions keep their identity, so that they can be resumed.
func TestIdentityOfEarlierJobs(t *testing.T) {
	for name, want := range map[string]string{"lm": "1833a79adc0a4ddd",
		"classify": "7857b51106a9d126", "tag": "7612f534557e7b58",
		"translate": "2e5d4af5075786bf", "regress": "e6a91bb52bbdbfaa"} {
		spec := Default()
		spec.Job, spec.Task = "song", name
		if got := Identity(spec, "text"); got != want {
			t.Errorf("--task %s: %s, want %s", name, got, want)
		}
	}
}

// A job of before there was --layer-norm and --skip-connections is one without them.
func TestIdentityOfLayers(t *testing.T) {
	before := Identity(Default(), "")
	for flag, change := range map[string]func(*rondov1.JobSpec){
		"--layer-norm true instead of false": func(s *rondov1.JobSpec) { s.LayerNorm = true },
		"--skip-connections true instead of false": func(s *rondov1.JobSpec) {
			s.SkipConnections = true
		},
	} {
		spec := Default()
		change(spec)
		if got := Differences(spec, Default()); Identity(spec, "") == before ||
			len(got) != 1 || got[0] != flag {
			t.Errorf("differences %q, want %q alone", got, flag)
		}
	}
	locked := Default() // masks may be others from any step on
	locked.DropoutLocked = true
	if Identity(locked, "") != before {
		t.Error("--dropout-locked makes another job")
	}
}

// A flag that a task does not read is refused in a line that names both. With its default it is
// accepted.
func TestFlagsOfOtherTasks(t *testing.T) {
	for flags, tasks := range map[string]string{
		"--bptt 20":                       "lm fill ngram hmm mlp reservoir",
		"--sampling random":               "lm fill",
		"--max-tokens 5":                  "lm fill ngram hmm mlp",
		"--blanks 0.2":                    "fill",
		"--vectors v.npy":                 "describe",
		"--vector-as state":               "describe",
		"--tie-weights --embed 8":         "lm",
		"--recompute 7":                   "lm",
		"--sample-every 3":                "lm ngram hmm mlp",
		"--sample-prefix a":               "lm ngram hmm mlp",
		"--label-smoothing 0.1":           "lm classify tag fill translate describe",
		"--attention scaled":              "translate",
		"--feedback output":               "translate",
		"--teacher-forcing 0.5":           "translate describe",
		"--bidirectional":                 "lm classify tag fill translate",
		"--max-length 5":                  "classify tag translate describe",
		"--max-examples 5":                "classify tag translate describe",
		"--pool max":                      "classify",
		"--pool last":                     strings.Join(task.Names(), " "),
		"--bptt 35":                       strings.Join(task.Names(), " "),
		"--order 2":                       "ngram mlp",
		"--smoothing laplace":             "ngram",
		"--states 9":                      "hmm",
		"--nonfinite step":                "lm classify tag fill translate describe mlp",
		"--pseudo-count 1":                "hmm",
		"--hidden 9":                      "lm classify tag fill translate describe reservoir mlp",
		"--washout 3":                     "reservoir",
		"--cell clockwork --periods 1,3":  "lm classify tag fill translate describe",
		"--skip-through-time 4 --embed 8": "lm classify tag fill",
		"--cell leaky --leak 0.3":         "lm classify tag fill translate describe",
		"--optimizer sgd":                 "lm classify tag fill translate describe mlp",
		"--precision bf16":                "lm classify tag fill translate describe",
	} {
		for name, needs := range map[string]string{"lm": "", "classify": "", "tag": "",
			"fill": "", "translate": "", "describe": "--vectors v.npy", "ngram": "",
			"reservoir": "", "hmm": "", "mlp": ""} {
			if name == "lm" && flags == "--bidirectional" {
				needs = "--i-know"
			}
			given := flags
			if !slices.Contains(task.Networks(), name) { // they refuse both
				given = strings.TrimSuffix(flags, " --embed 8")
			}
			_, err := parse(t, append(strings.Fields(given+" "+needs), "--task", name)...)
			flag, _, _ := strings.Cut(flags, " ")
			own := slices.Contains(strings.Fields(tasks), name)
			var usage *UsageError
			if own && err != nil || !own && (!errors.As(err, &usage) ||
				!strings.HasPrefix(err.Error(), flag+" is for --task ") ||
				!strings.Contains(err.Error(), "the task is "+name)) {
				t.Errorf("--task %s %s: %v", name, flags, err)
			}
		}
	}
}

// Fill reads in both directions unless a flag says otherwise. A language model that does is
// refused, unless --i-know is given, and belongs to another job than a causal one.
func TestBothDirections(t *testing.T) {
	for args, want := range map[string]bool{"--task fill": true,
		"--task fill --bidirectional=false": false, "--task tag": false,
		"--bidirectional --i-know": true} {
		spec, err := parse(t, strings.Fields(args)...)
		if err != nil || spec.Bidirectional != want || Validate(spec) != nil {
			t.Errorf("%s: %v, %v", args, spec.GetBidirectional(), errors.Join(err, Validate(spec)))
		}
	}
	spec, err := parse(t, "--bidirectional")
	if err == nil {
		err = Validate(spec)
	}
	if err == nil || !strings.Contains(err.Error(), "sees the next token") {
		t.Errorf("got %v", err)
	}
	if d := Differences(spec, Default()); len(d) != 1 || Identity(spec, "") ==
		Identity(Default(), "") {
		t.Errorf("differences %v", d)
	}
	spec.IKnow, spec.TieWeights, spec.Embed = true, true, 8
	if err := Validate(spec); err == nil || !strings.Contains(err.Error(), "--tie-weights") {
		t.Errorf("tied weights: %v", err)
	}
	if spec, err = parse(t, "--task", "describe"); err == nil {
		err = Validate(spec)
	}
	if err == nil || !strings.Contains(err.Error(), "--vectors") {
		t.Errorf("describe without vectors: %v", err)
	}
}

// The tasks of examples read words, unless a flag says otherwise.
func TestTokensOfATask(t *testing.T) {
	for args, want := range map[string]string{
		"": "char", "--task classify": "word", "--task tag": "word",
		"--task fill": "char", "--task describe --vectors v.npy": "word",
		"--task classify --tokenizer char": "char", "--task lm --tokenizer word": "word",
	} {
		spec, err := parse(t, strings.Fields(args)...)
		if err != nil || spec.Tokenizer != want {
			t.Errorf("%s: %q, %v", args, spec.GetTokenizer(), err)
		}
	}
}
