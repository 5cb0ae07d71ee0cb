package main

import (
	"bytes"
	"strings"
	"testing"

	"rondo/bench/busbw"
)

func TestJudge(t *testing.T) {
	all := []trial{
		{row: busbw.Row{MS: 100}, modelled: 98},
		{row: busbw.Row{MS: 100}, modelled: 105},
		{row: busbw.Row{MS: 10}, modelled: 13},
	}
	var out bytes.Buffer
	if err := (config{AtMost: 0.05001}).judge(all, &out); err != nil {
		t.Error(err)
	}
	if want := "median error of 3 rings: 5.0%; largest: 30.0%\n"; out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
	err := config{AtMost: 0.04}.judge(all, &out)
	if err == nil || err.Error() != "the median error is 5.0%, more than 4.0%" {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for want, wrong := range map[string]func(*config){
		"-worlds 2: must be 3 to 64": func(c *config) { c.Worlds = []int{4, 2} },
		"-rates 0: must be":          func(c *config) { c.Rates = []int{0} },
		"-sizes: at least two":       func(c *config) { c.Sizes = []int{4} },
	} {
		c := config{Worlds: []int{4}, Rates: []int{50}, Sizes: []int{4, 8}}
		if err := c.validate(); err != nil {
			t.Fatal(err)
		}
		wrong(&c)
		if err := c.validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := numbers("-sizes", "1,x"); err == nil ||
		err.Error() != `-sizes 1,x: "x" is not a number` {
		t.Error(err)
	}
}
