package command

import (
	"bytes"
	"context"
	"errors"
	"testing"
)

func TestEnd(t *testing.T) {
	wrong := errors.New("it broke\n")
	fine := func() error { return nil }
	misused := func() error { return errors.New("-x 0: too few") }
	for name, test := range map[string]struct {
		ready func() error
		run   error
		code  int
		said  string
	}{
		"done":    {fine, nil, 0, ""},
		"misused": {misused, wrong, 2, "b: -x 0: too few\n"},
		"failed":  {fine, wrong, 1, "b: it broke\n"},
	} {
		var log bytes.Buffer
		ran := false
		code := end(t.Context(), "b", &log, test.ready, func(context.Context) error {
			ran = true
			return test.run
		})
		if code != test.code || log.String() != test.said || ran != (code != 2) {
			t.Errorf("%s: %d, %q, ran %v", name, code, &log, ran)
		}
	}
}
