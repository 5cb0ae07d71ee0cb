package integration

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
)

// describing is the task describe.
func describing(t *testing.T) exampleTask {
	t.Helper()
	vectors, texts := tones(t, 115)
	return exampleTask{"describe", texts, []string{"bleu"}, 90,
		[]string{"--bidirectional=false", "--vectors", vectors, "--lr", "0.05"}, nil}
}

// tones returns a NumPy file of vectors that say with which notes their texts begin and end, and
// these texts, in another order than the vectors and some twice.
func tones(t *testing.T, texts int) (vectors, table string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(13, 14))
	notes, rows := []string{"do", "re", "mi", "fa"}, 40
	header := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 8), }", rows)
	header += strings.Repeat(" ", 118-len(header)-1) + "\n"
	file := append([]byte("\x93NUMPY\x01\x00"), binary.LittleEndian.AppendUint16(nil,
		uint16(len(header)))...)
	file = append(file, header...)
	lines := make([]string, rows)
	for row := range rows {
		first, last := rng.IntN(4), rng.IntN(4)
		for column := range 8 {
			x := 0.1 * rng.NormFloat64()
			if column == first || column == 4+last {
				x++
			}
			file = binary.LittleEndian.AppendUint32(file, math.Float32bits(float32(x)))
		}
		lines[row] = fmt.Sprintf("%d\tfrom %s on to %s\n", row, notes[first], notes[last])
	}
	text := ""
	for i := range texts {
		text += lines[(7*i)%rows]
	}
	return write(t, "tones.npy", string(file)), write(t, "tones.tsv", text)
}

// TestDescribedUse: what training says of a network is what rondo eval says of its checkpoint, and
// rondo describe writes the texts of vectors, however these are read and the texts end.
func TestDescribedUse(t *testing.T) {
	t.Parallel()
	k := describing(t)
	vectors := k.network[2]
	for way, ends := range map[string]string{"both": "eos", "state": "stop", "input": "length"} {
		t.Run(way, func(t *testing.T) {
			dir := t.TempDir()
			events := train(t, k.flags("--vector-as", way, "--ends", ends, "--checkpoint-dir",
				dir, "--steps", "200", "--hidden", "24", "--layers", "1", "--dropout", "0",
				"--dropout-input", "0", "--lr", "0.01", "--validation-fraction", "0",
				"--eval-corpus", k.corpus, "--eval-every", "200", "--checkpoint-every", "200")...)
			last, done := named(events, "eval")[0], events[len(events)-1]
			if v := last.number("bleu"); !(v >= k.reached && v <= 100.01) ||
				done.number("bleu") != v || done.name() != "done" {
				t.Errorf("BLEU %v in the evaluation; last event: %v", v, done)
			}
			newest := filepath.Join(dir, "step-00000200")
			for _, more := range [][]string{nil, {"--vectors", vectors}} {
				code, stdout, stderr := run(t, append([]string{"eval", "--checkpoint", newest,
					"--corpus", k.corpus, "--json"}, more...)...)
				var e event
				if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
					t.Fatalf("exit code %d, %v: %s", code, err, stderr)
				}
				near(t, []event{e}, []event{last}, "bleu", "loss", "tokens")
			}
			code, stdout, stderr := run(t, "describe", "--checkpoint", newest, "--vectors", vectors,
				"--json", "--beam", "2")
			lines := strings.Split(strings.TrimSpace(stdout), "\n")
			var second struct {
				Row            int
				Text           string
				LogProbability float64 `json:"log_probability"`
			}
			if code != 0 || len(lines) != 40 || json.Unmarshal([]byte(lines[1]), &second) != nil ||
				second.Row != 1 || second.LogProbability > 0 || !strings.HasPrefix(second.Text,
				"from ") {
				t.Errorf("exit code %d: %s%s", code, stdout, stderr)
			}
			if code, stdout, _ := run(t, "describe", "--checkpoint", newest, "--vectors",
				vectors); code != 0 || strings.Split(stdout, "\n")[1] != second.Text {
				t.Errorf("exit code %d: %s, want %q", code, stdout, second.Text)
			}
		})
	}
}

// TestDescribedWrongInput: bad data are one line that names the file and the line.
func TestDescribedWrongInput(t *testing.T) {
	t.Parallel()
	k, dir := describing(t), t.TempDir()
	train(t, k.flags("--steps", "2", "--eval-every", "0", "--checkpoint-dir", dir)...)
	saved := filepath.Join(dir, "step-00000002")
	vectors := k.network[2]
	far := write(t, "far.tsv", "0\tdo\n40\tre\n")
	word := write(t, "word.tsv", "0\tdo\nre\tmi\n")
	alone := write(t, "alone.tsv", "0\tdo\n1\n")
	wide := write(t, "wide.csv", "1,2\n3,4\n")
	nan := write(t, "nan.csv", "1,2\nNaN,4\n")
	torn := write(t, "torn.safetensors", "x")
	describe := []string{"train", "--task", "describe", "--corpus", k.corpus}
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"no vectors": {describe, []string{"--task describe", "--vectors"}},
		"no such row": {append(describe, "--vectors", vectors, "--corpus", far),
			[]string{far, "line 2", `"40"`, "40"}},
		"no number": {append(describe, "--vectors", vectors, "--corpus", word),
			[]string{word, "line 2", `"re"`}},
		"one column": {append(describe, "--vectors", vectors, "--corpus", alone),
			[]string{alone, "line 2", "row TAB text"}},
		"no number in a vector": {append(describe, "--vectors", nan),
			[]string{"--vectors", nan, "line 2", "NaN"}},
		"torn file": {append(describe, "--vectors", torn), []string{"--vectors", torn}},
		"other vectors": {[]string{"describe", "--checkpoint", saved, "--vectors", wide},
			[]string{"--vectors", wide, "2 columns", "8"}},
		"eval of another row": {[]string{"eval", "--checkpoint", saved, "--corpus", far},
			[]string{far, "line 2"}},
		"folder of another network": {append([]string{"train"}, k.flags("--checkpoint-dir", dir,
			"--vector-as", "input")...), []string{dir, "--vector-as"}},
		"flag of another task": {append(describe, "--vectors", vectors, "--attention", "luong"),
			[]string{"--attention", "--task translate", "describe"}},
		"vectors of another task": {[]string{"train", "--task", "translate", "--vectors", vectors},
			[]string{"--vectors", "--task describe", "translate"}},
		"command of another task": {[]string{"translate", "--checkpoint", saved},
			[]string{"--task describe", "--task translate"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := run(t, c.args...)
			oneLine(t, code, 2, stderr, c.want...)
		})
	}
}
