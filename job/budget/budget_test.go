package budget

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// machine trains a model of H² parameters at 10^8/H² tokens/s. It counts its measurements.
func machine(measured *int) Machine {
	return Machine{
		Parameters: func(s *rondov1.JobSpec) (int64, error) { return s.Hidden * s.Hidden, nil },
		Speed: func(s *rondov1.JobSpec) (float64, error) {
			*measured++
			return 1e8 / float64(s.Hidden*s.Hidden), nil
		},
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name     string
		given    string
		tokens   int64
		limit    time.Duration
		hidden   int64
		steps    int64
		dropout  float64
		measured int
	}{
		// In t seconds H reads 0.9e8 t/H² tokens, and needs 20 H²: H⁴ <= 4.5e6 t.
		{"a long text", "", 1e9, 1000 * time.Second, 256, 1_373_291 / 1120, 0, 6},
		{"a short time", "", 1e9, time.Second, 64, 21_972 / 1120, 0, 2},
		// 30 passes over 20,000 tokens are 600,000, enough for 30,000 parameters: H 128.
		{"a short text", "", 20_000, 1000 * time.Second, 128, 600_000 / 1120, 0.4, 4},
		{"10 passes", "hidden", 137_330, 1000 * time.Second, 256, 1_373_291 / 1120, 0.2, 1},
		{"its own dropout", "hidden dropout", 137_330, 1000 * time.Second, 256, 1_373_291 / 1120,
			0.7, 1},
	} {
		job := jobspec.Default()
		job.Dropout = 0.7
		measured := 0
		choice, err := Choose(job, func(flag string) bool {
			return strings.Contains(c.given, flag)
		}, c.tokens, c.limit, machine(&measured))
		if err != nil {
			t.Fatal(err)
		}
		s := choice.Spec
		if s.Hidden != c.hidden || s.Steps != c.steps || s.Dropout != c.dropout || s.Epochs != 0 ||
			s.Embed != 0 || measured != c.measured {
			t.Errorf("%s: hidden %d, embed %d, steps %d, dropout %g, %d measurements", c.name,
				s.Hidden, s.Embed, s.Steps, s.Dropout, measured)
		}
		if err := jobspec.Validate(s); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if job.Hidden != 256 || job.Steps != 0 {
			t.Errorf("%s: the caller's job was changed", c.name)
		}
	}
}

// The width is the largest that fits in memory. If even the least does not fit, Choose fails.
func TestChooseWithinMemory(t *testing.T) {
	for _, most := range []int64{128, 0} {
		measured := 0
		on := machine(&measured)
		speed := on.Speed
		on.Speed = func(s *rondov1.JobSpec) (float64, error) {
			if s.Hidden > most {
				return 0, fmt.Errorf("hidden %d: %w", s.Hidden, ErrTooLarge)
			}
			return speed(s)
		}
		choice, err := Choose(jobspec.Default(), func(string) bool { return false }, 1e9,
			1000*time.Second, on)
		switch {
		case most == 0 && !errors.Is(err, ErrTooLarge):
			t.Errorf("nothing fits: %v", err)
		case most > 0 && (err != nil || choice.Spec.Hidden != most):
			t.Errorf("at most %d fits: %v, %v", most, choice, err)
		}
	}
}

func TestChooseOfWords(t *testing.T) {
	job, measured := jobspec.Default(), 0
	job.Tokenizer = "word"
	choice, err := Choose(job, func(string) bool { return false }, 1e9, time.Second,
		machine(&measured))
	if err != nil || choice.Spec.Embed != 64 {
		t.Errorf("%v, %v: words have an embedding", choice, err)
	}
}

func TestChooseRefuses(t *testing.T) {
	for want, c := range map[string]struct {
		given string
		task  string
		limit time.Duration
	}{
		"leave out --steps": {"steps", "lm", time.Minute},
		"leave out --epoch": {"epochs", "lm", time.Minute},
		"the task is tag":   {"", "tag", time.Minute},
		"must be above 0":   {"", "lm", -time.Minute},
	} {
		job, measured := jobspec.Default(), 0
		job.Task = c.task
		_, err := Choose(job, func(flag string) bool { return flag == c.given }, 1000, c.limit,
			machine(&measured))
		if err == nil || !strings.Contains(err.Error(), want) || measured != 0 {
			t.Errorf("%v; want %q", err, want)
		}
	}
	broken := errors.New("no device")
	_, err := Choose(jobspec.Default(), func(string) bool { return false }, 1000, time.Minute,
		Machine{Parameters: func(*rondov1.JobSpec) (int64, error) { return 1, nil },
			Speed: func(*rondov1.JobSpec) (float64, error) { return 0, broken }})
	if !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
}
