package model

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
)

// TestValidate expects one line for each mistake, with its flag.
func TestValidate(t *testing.T) {
	good := Config{Cell: compute.LSTM, Vocab: 28, Hidden: 16, Layers: 2, Embed: 8, Dropout: 0.5,
		TieWeights: true, ForgetBias: 1}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"cell":        {func(c *Config) { c.Cell = compute.Cell(len(compute.Cells())) }, "--cell"},
		"vocabulary":  {func(c *Config) { c.Vocab = 0 }, "--corpus"},
		"no hidden":   {func(c *Config) { c.Hidden = 0 }, "--hidden 0"},
		"much hidden": {func(c *Config) { c.Hidden = 65537 }, "--hidden 65537"},
		"layers":      {func(c *Config) { c.Layers = 0 }, "--layers 0"},
		"embed":       {func(c *Config) { c.Embed = -1 }, "--embed -1"},
		"tie":         {func(c *Config) { c.Embed = 0 }, "--tie-weights needs --embed"},
		"dropout":     {func(c *Config) { c.Dropout = 1 }, "--dropout 1"},
		"dropout 1-":  {func(c *Config) { c.Dropout = 1 - 1e-12 }, "--dropout 0.99"},
		"input":       {func(c *Config) { c.DropoutInput = 1 }, "--dropout-input 1"},
		"one-hot": {func(c *Config) { c.TieWeights, c.Embed, c.DropoutInput = false, 0, 0.5 },
			"set --embed"},
		"dropout NaN": {func(c *Config) { c.Dropout = math.NaN() }, "--dropout NaN"},
		"forget": {func(c *Config) { c.Cell = compute.GRU },
			"--forget-bias 1 needs --cell lstm"},
		"forget inf": {func(c *Config) { c.ForgetBias = math.Inf(1) }, "--forget-bias +Inf"},
		"init":       {func(c *Config) { c.Init.Kind = 9 }, "--init"},
		"normal": {func(c *Config) { c.Init = Init{Kind: Normal, Value: -1} },
			"--init normal:-1"},
		"tail": {func(c *Config) { c.GradientTail = -1 }, "tail"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			bad.change(&c)
			err := c.Validate()
			if err == nil || !strings.Contains(err.Error(), bad.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v, want one line with %q", err, bad.want)
			}
			if _, err := New(c, newDevice(t)); err == nil {
				t.Error("New took it")
			}
		})
	}
	if _, err := New(good, nil); err == nil {
		t.Error("New took no device")
	}
}

// TestLayout checks names, shapes, order and alignment. Views must not overlap, and only padding
// lies between them.
func TestLayout(t *testing.T) {
	lstm := Config{Cell: compute.LSTM, Vocab: 10, Hidden: 6, Layers: 2}
	tied := lstm
	tied.Embed, tied.TieWeights = 4, true
	embedded := Config{Cell: compute.GRU, Vocab: 10, Hidden: 6, Layers: 1, Embed: 3}
	holes := lstm
	holes.Cell, holes.Layers = compute.LSTMPeephole, 1
	same := tied
	same.Embed, same.Layers = 6, 1
	for _, c := range []struct {
		config Config
		want   string
	}{
		{lstm, "output.weight[10 6] output.bias[10] rnn.weight_ih_l1[24 6] rnn.weight_hh_l1[24 6]" +
			" rnn.bias_ih_l1[24] rnn.bias_hh_l1[24] rnn.weight_ih_l0[24 10]" +
			" rnn.weight_hh_l0[24 6] rnn.bias_ih_l0[24] rnn.bias_hh_l0[24]"},
		{tied, "output.bias[10] projection.weight[4 6] rnn.weight_ih_l1[24 6]" +
			" rnn.weight_hh_l1[24 6] rnn.bias_ih_l1[24] rnn.bias_hh_l1[24] rnn.weight_ih_l0[24 4]" +
			" rnn.weight_hh_l0[24 6] rnn.bias_ih_l0[24] rnn.bias_hh_l0[24] embedding.weight[10 4]"},
		{embedded, "output.weight[10 6] output.bias[10] rnn.weight_ih_l0[18 3]" +
			" rnn.weight_hh_l0[18 6] rnn.bias_ih_l0[18] rnn.bias_hh_l0[18] embedding.weight[10 3]"},
		{holes, "output.weight[10 6] output.bias[10] rnn.weight_ih_l0[24 10]" +
			" rnn.weight_hh_l0[24 6] rnn.bias_ih_l0[24] rnn.bias_hh_l0[24]" +
			" rnn.weight_peephole_l0[18]"},
		{same, "output.bias[10] rnn.weight_ih_l0[24 6] rnn.weight_hh_l0[24 6] rnn.bias_ih_l0[24]" +
			" rnn.bias_hh_l0[24] embedding.weight[10 6]"},
	} {
		var names []string
		next, count := 0, 0
		for _, v := range Layout(c.config) {
			names = append(names, v.Name+fmt.Sprint(v.Shape))
			n := 1
			for _, d := range v.Shape {
				n *= d
			}
			if v.Len != n || v.Offset != next || v.Offset%16 != 0 {
				t.Errorf("%s %v: %d floats at %d, want %d at %d", v.Name, v.Shape, v.Len, v.Offset,
					n, next)
			}
			next, count = (v.Offset+v.Len+15)/16*16, count+n
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
		if views := Layout(c.config); Span(views) != next || Count(views) != count {
			t.Errorf("span %d and count %d, want %d and %d", Span(views), Count(views), next, count)
		}
	}
}

// TestParameters checks the flat slices: lengths, tail, and that views share their memory.
func TestParameters(t *testing.T) {
	c := shapes()["lstm/2/tied-projected"]
	c.GradientTail = 3
	m := newModel(t, c)
	span := Span(Layout(c))
	if len(m.Params()) != span || len(m.Gradients()) != span || cap(m.Gradients()) != span ||
		len(m.GradientsWithTail()) != span+3 {
		t.Errorf("lengths %d, %d, %d, want %d", len(m.Params()), len(m.Gradients()),
			len(m.GradientsWithTail()), span)
	}
	if &m.Gradients()[0] != &m.GradientsWithTail()[0] {
		t.Error("the gradients with a tail are other memory")
	}
	if m.Count() != Count(m.Layout()) || !reflect.DeepEqual(m.Config(), c) {
		t.Error("the model is not its Config's")
	}
	x, shape, err := m.Param("projection.weight")
	if err != nil || !slices.Equal(shape, []int{4, 5}) || len(x) != 20 {
		t.Errorf("projection.weight: %d floats of shape %v (%v)", len(x), shape, err)
	}
	v := find(m.Layout(), "projection.weight")
	if g, err := m.Gradient("projection.weight"); err != nil || &g[0] != &m.Gradients()[v.Offset] {
		t.Errorf("the gradient is not a view (%v)", err)
	}
	for _, get := range []func() error{
		func() error { _, _, err := m.Param("nonsense"); return err },
		func() error { _, err := m.Gradient("nonsense"); return err },
	} {
		if err := get(); err == nil || !strings.Contains(err.Error(), `"nonsense"`) {
			t.Errorf("an unknown name: %v", err)
		}
	}
}
