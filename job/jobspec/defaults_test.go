package jobspec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	rondov1 "rondo/proto/rondo/v1"
)

// resolved is what the defaults that depend on other flags come to.
type resolved struct {
	epochs, steps        int64
	validation, lr       float64
	layers               int64
	dropout              float64
	optimizer, evaluated string
}

func resolvedOf(s *rondov1.JobSpec) resolved {
	return resolved{s.Epochs, s.Steps, s.ValidationFraction, s.Lr, s.Layers, s.Dropout, s.Optimizer,
		s.EvalCorpus}
}

// TestDefaultsThatDependOnOthers: flags and YAML keys alike, and the job's own YAML means the same.
func TestDefaultsThatDependOnOthers(t *testing.T) {
	usual := resolved{epochs: 30, validation: 0.1, lr: 0.003, layers: 2, dropout: 0.4,
		optimizer: "adam"}
	for args, change := range map[string]func(*resolved){
		"":                           func(*resolved) {},
		"--steps=3000":               func(r *resolved) { r.steps, r.epochs = 3000, 0 },
		"--steps=3000 --epochs=20":   func(r *resolved) { r.epochs, r.steps = 20, 3000 },
		"--steps=9 --epochs=2":       func(r *resolved) { r.steps, r.epochs = 9, 2 },
		"--eval-corpus=x":            func(r *resolved) { r.evaluated, r.validation = "x", 0 },
		"--validation-fraction=0.2":  func(r *resolved) { r.validation = 0.2 },
		"--optimizer=sgd":            func(r *resolved) { r.optimizer, r.lr = "sgd", 1 },
		"--optimizer=momentum":       func(r *resolved) { r.optimizer, r.lr = "momentum", 0.1 },
		"--optimizer=nesterov":       func(r *resolved) { r.optimizer, r.lr = "nesterov", 0.1 },
		"--optimizer=adamw":          func(r *resolved) { r.optimizer = "adamw" },
		"--optimizer=rmsprop":        func(r *resolved) { r.optimizer, r.lr = "rmsprop", 0.001 },
		"--optimizer=adagrad":        func(r *resolved) { r.optimizer, r.lr = "adagrad", 0.03 },
		"--optimizer=sgd --lr=0":     func(r *resolved) { r.optimizer, r.lr = "sgd", 1 },
		"--optimizer=sgd --lr=0.003": func(r *resolved) { r.optimizer = "sgd" },
		"--layers=1":                 func(r *resolved) { r.layers = 1 },
		"--layers=1 --dropout=0":     func(r *resolved) { r.layers, r.dropout = 1, 0 },
		"--layers=3":                 func(r *resolved) { r.layers = 3 },
		"--dropout=0":                func(r *resolved) { r.dropout = 0 },
		"--task=ngram":               func(r *resolved) { r.epochs, r.lr = 1, 0 },
		"--task=hmm":                 func(r *resolved) { r.lr = 0 },
		"--task=hmm --steps=7":       func(r *resolved) { r.steps, r.epochs, r.lr = 7, 0, 0 },
		"--task=mlp":                 func(*resolved) {},
		"--task=ngram --bptt=35":     func(r *resolved) { r.epochs, r.lr = 1, 0 },
	} {
		want := usual
		change(&want)
		spec, err := parse(t, strings.Fields(args)...)
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		if got := resolvedOf(spec); got != want {
			t.Errorf("%s: got %+v, want %+v", args, got, want)
		}
		if text := through(t, spec); !strings.Contains(text, "epochs:") {
			t.Errorf("%s: the YAML does not say how long:\n%s", args, text)
		}
		keys := map[string]string{}
		for _, word := range strings.Fields(args) {
			name, value, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
			keys[name] = value
		}
		text, err := yaml.Marshal(keys)
		if err != nil {
			t.Fatal(err)
		}
		if file, err := FromYAML("job.yaml", text); err != nil || !proto.Equal(file, spec) {
			t.Errorf("%s: %v, got %v, want %v", text, err, file, spec)
		}
	}
}

// TestDefaultsOfFlagsOverAFile: what a flag gives counts before the defaults of the file's keys do.
func TestDefaultsOfFlagsOverAFile(t *testing.T) {
	path := writeYAML(t, "optimizer: sgd\nsteps: 70\n")
	spec, err := parse(t, "--config", path, "--optimizer", "momentum", "--epochs", "4")
	if err != nil || spec.Lr != 0.1 || spec.Epochs != 4 || spec.Steps != 70 {
		t.Errorf("%v: lr %v, %d epochs, %d steps", err, spec.Lr, spec.Epochs, spec.Steps)
	}
	path = writeYAML(t, "epochs: 3\n")
	if spec, err = parse(t, "--config", path, "--steps", "8"); err != nil || spec.Epochs != 3 {
		t.Errorf("%v: %d epochs, and the file says 3", err, spec.Epochs)
	}
}

// TestTextbookKeepsItsMeaning: what the textbooks' runs are made of does not follow the defaults.
func TestTextbookKeepsItsMeaning(t *testing.T) {
	spec, err := parse(t, strings.Fields("--layers 1 --dropout 0 --bptt 35 --batch 32 "+
		"--hidden 256 --optimizer sgd --lr 1 --lr-schedule constant --epochs 10 "+
		"--validation-fraction 0")...)
	if err != nil || !proto.Equal(spec, Textbook()) {
		t.Errorf("%v: got %v, want %v", err, Textbook(), spec)
	}
}
