package main

import (
	"bytes"
	"strings"
	"testing"
)

func testConfig() config {
	return config{Python: "python", Workers: 4, Rate: 1000, Cell: "lstm", Hidden: 256, Layers: 1,
		Batch: 8, BPTT: 35, Steps: 10, Turns: 1, Cores: "0,1"}
}

// The efficiency is held against what perfect overlap would leave, and Rondo against its peer, each
// turn by itself.
func TestReport(t *testing.T) {
	c := testConfig()
	c.AtLeast, c.Ratio = 0.9, 2
	rondo := &result{"rondo", []float64{0.1, 0.3, 0.1}, []float64{0.25, 0.6, 0.2}}
	torch := &result{"torch ddp", []float64{0.2, 0.3, 0.2}, []float64{0.3, 0.9, 0.3}}
	half := &result{"rondo, bf16 wire", rondo.compute, []float64{0.2, 0.3, 0.1}}
	var out bytes.Buffer
	err := c.report(0.2, rondo, half, torch, &out)
	if err == nil || err.Error() != "1.50x of torch ddp, less than 2.00x" {
		t.Error(err)
	}
	for _, want := range []string{
		"takes 200.0 ms, of which 14.4 are the links'", // 1,200,240 bytes, one and a half times
		"Mb/s, each on one of the cores 0,1; lstm",
		"rondo                  100.0     250.0       4480       0.500   0.400-0.500" +
			"            0.500     1.000\n",
		"rondo, bf16 wire       100.0     200.0       5600       1.000   0.500-1.000",
		"torch ddp              200.0     300.0       3733       0.667   0.333-0.667" +
			"            1.000     0.667\n",
		"rondo is 1.50x as fast as torch ddp (1.200-1.500)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	err = c.report(0.1, rondo, &result{}, &result{}, &out)
	if err == nil || !strings.HasPrefix(err.Error(), "the efficiency is 0.500 of min(") {
		t.Error(err)
	}
}

// Workers share the cores by turns; without any they have what the system gives them.
func TestPinned(t *testing.T) {
	c := testConfig()
	c.Cores = "4,6"
	for worker, want := range []string{"taskset --cpu-list 4 a b", "taskset --cpu-list 6 a b",
		"taskset --cpu-list 4 a b"} {
		if got := strings.Join(c.pinned(worker, []string{"a", "b"}), " "); got != want {
			t.Errorf("worker %d: %s, want %s", worker, got, want)
		}
	}
	c.Cores = ""
	if got := c.pinned(1, []string{"a"}); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// PyTorch's LSTM of 256 units over 28 letters has 292,864 parameters, and its output layer 7,196.
func TestBytes(t *testing.T) {
	if got := testConfig().bytes(); got != 4*(292_864+7_196) {
		t.Errorf("%d bytes", got)
	}
}

func TestValidate(t *testing.T) {
	for want, wrong := range map[string]func(*config){
		"-workers 1: must be 2 to": func(c *config) { c.Workers = 1 },
		`-cell "cnn": must be rnn`: func(c *config) { c.Cell = "cnn" },
		"-ratio 1: there is":       func(c *config) { c.Ratio, c.Python = 1, "" },
		`-cores: "x" is not`:       func(c *config) { c.Cores = "0,x" },
	} {
		c := testConfig()
		if err := c.validate(); err != nil {
			t.Fatal(err)
		}
		wrong(&c)
		if err := c.validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
