package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"rondo/corpus"
)

// maxFindings is the largest number of findings in a report.
const maxFindings = 100

// Report is the result of a proof. If it has no findings, each lane was read exactly once, at its
// position, in each step from First to Last. Of examples, none was read twice in an epoch, and each
// once in the whole Epochs.
type Report struct {
	First    int64    `json:"first"`    // first step of the logged history
	Last     int64    `json:"last"`     // First-1 if nothing was committed
	Lanes    int      `json:"lanes"`    // lanes of the batch
	Each     int      `json:"each"`     // segments per lane and step
	Segments int64    `json:"segments"` // segments read in the steps that count
	Runs     int      `json:"runs"`
	Rings    int      `json:"rings"`
	Workers  int      `json:"workers"`  // number of logs
	Repeated int64    `json:"repeated"` // attempts at a step that do not count
	Torn     int      `json:"torn"`     // logs with an incomplete last line
	Examples bool     `json:"examples"` // lanes read examples, not a text
	Epochs   int64    `json:"epochs"`   // of examples: whole epochs that read each once
	Tokens   bool     `json:"tokens"`   // whether tokens were compared, not only positions
	Findings []string `json:"findings"` // the first maxFindings
	More     int64    `json:"more"`     // number of further findings
}

// Sound reports whether there are no findings.
func (r *Report) Sound() bool { return len(r.Findings) == 0 }

// Prove reads all logs of a job. tokens may be the job's training tokens; then Prove also compares
// what was read with the text. Problems in the logs are findings; the error is only one of reading.
//
// Memory holds one ring at a time, with a line and a buffer per worker, and a few words for each
// ring of each worker.
func Prove(ctx context.Context, logs fs.FS, tokens corpus.Tokens) (*Report, error) {
	p := &prover{logs: logs, tokens: tokens}
	p.report.Tokens, p.report.Findings = tokens != nil, []string{}
	if err := p.scan(ctx); err != nil {
		return nil, fmt.Errorf("audit logs: %w", err)
	}
	if err := p.makeSampler(); err != nil {
		return nil, fmt.Errorf("audit logs: %w", err)
	}
	if p.sampler == nil && p.epochs == nil {
		p.find("there is no ring in any log")
		return &p.report, nil
	}
	p.report.Examples = p.epochs != nil
	p.link()
	for i := range p.rings {
		if err := p.proveRing(ctx, &p.rings[i]); err != nil {
			return nil, fmt.Errorf("audit logs: generation %d: %w", p.rings[i].Generation, err)
		}
	}
	if p.epochs != nil {
		p.report.Epochs = p.epochs.complete
	}
	return &p.report, nil
}

// prover is the state of Prove.
type prover struct {
	logs     fs.FS
	tokens   corpus.Tokens        // nil: tokens are not compared
	batches  corpus.SamplerConfig // of all rings
	sampler  *corpus.Sampler      // of a text
	epochs   *epochs              // of examples; one of the two is set
	sections []*section           // sorted by ring
	rings    []ring
	report   Report
	inputs   []int32 // of one read line
	window   []int32
	bytes    []byte
}

// ring is a ring with its workers' sections. Its steps (counted, until] count.
type ring struct {
	ringLine
	sections       []*section
	last           int64 // largest step that any worker committed, or From
	counted, until int64
}

// contains reports whether a section belongs to the ring. Within a generation all workers restart
// together, so the n-th sections of all workers form one ring.
func (r *ring) contains(s *section) bool {
	return r.sections[0].sameRing(s) && r.sections[0].attempt == s.attempt
}

func (p *prover) find(format string, a ...any) {
	if len(p.report.Findings) == maxFindings {
		p.report.More++
		return
	}
	p.report.Findings = append(p.report.Findings, fmt.Sprintf(format, a...))
}

// makeSampler makes the sampler from the first valid ring. It drops sections with other batches.
func (p *prover) makeSampler() error {
	kept := p.sections[:0]
	var first *section
	for _, s := range p.sections {
		batches := s.ring.batches()
		if first == nil {
			if err := p.read(batches); err != nil {
				p.find("%s line %d: %v", s.file, s.line, err)
				continue
			}
			p.batches, first = batches, s
		}
		if batches != p.batches || s.ring.segments() != first.ring.segments() {
			p.find("%s line %d: the ring of generation %d belongs to another job than the ring "+
				"of generation %d in %s: %s", s.file, s.line, s.ring.Generation,
				first.ring.Generation, first.file, differences(first.ring, s.ring, true))
			continue
		}
		kept = append(kept, s)
	}
	p.sections = kept
	if first == nil {
		return nil
	}
	batches := p.batches
	p.report.Lanes, p.report.Each = batches.Lanes, first.ring.segments()
	if p.tokens != nil && p.epochs != nil {
		return errors.New("the job read examples, not a text, and they are proved by their " +
			"numbers: leave out --corpus")
	}
	if p.tokens != nil && p.tokens.Len() != batches.Tokens {
		return fmt.Errorf("the text has %d tokens, and the job read one of %d: give the same "+
			"--corpus and the same flags for it", p.tokens.Len(), batches.Tokens)
	}
	if p.tokens != nil && int64(batches.Lanes)*int64(batches.BPTT) > maxInputs {
		return errors.New("the batch is too large for its tokens to be compared")
	}
	return nil
}

// read makes what the readings of these batches are checked against.
func (p *prover) read(batches corpus.SamplerConfig) (err error) {
	if batches.Sampling == corpus.Examples {
		p.epochs, err = newEpochs(batches)
	} else {
		p.sampler, err = corpus.NewSampler(batches)
	}
	return err
}

// differences lists the differences of two rings as flags: "--batch 8 and 16". With batches it
// compares only the batches.
func differences(a, b ringLine, batches bool) string {
	if batches {
		a.From, a.Committed, a.World, a.SyncEvery = b.From, b.Committed, b.World, b.SyncEvery
	}
	var all []string
	for _, d := range []struct {
		what string
		a, b any
	}{
		{"--batch", a.Lanes, b.Lanes}, {"--bptt", a.BPTT, b.BPTT},
		{"--sampling", a.Sampling, b.Sampling}, {"--seed", a.Seed, b.Seed},
		{"--accumulate", a.segments(), b.segments()},
		{"tokens of the text", a.Tokens, b.Tokens}, {"workers", a.World, b.World},
		{"steps done before", a.From, b.From},
		{"state of generation", a.Committed, b.Committed},
		{"--sync-every", a.SyncEvery, b.SyncEvery},
	} {
		if d.a != d.b {
			all = append(all, fmt.Sprintf("%s %v and %v", d.what, d.a, d.b))
		}
	}
	return strings.Join(all, ", ")
}

// link groups the sections by ring and finds the chain of rings.
func (p *prover) link() {
	for _, s := range p.sections {
		if n := len(p.rings); n == 0 || !p.rings[n-1].contains(s) {
			p.rings = append(p.rings, ring{ringLine: s.ring, last: s.ring.From})
			if n == 0 || p.rings[n-1].Run != s.ring.Run {
				p.report.Runs++
			}
		}
		r := &p.rings[len(p.rings)-1]
		if s.ring != r.ringLine {
			p.find("%s line %d: the ring of generation %d differs from %s: %s", s.file, s.line,
				s.ring.Generation, r.sections[0].file, differences(s.ring, r.ringLine, false))
		}
		r.sections = append(r.sections, s)
		r.last = max(r.last, s.last)
	}
	p.report.Rings = len(p.rings)
	p.chain()
}

// chain walks from the last ring backwards. The predecessor of a ring is the latest ring that
// reached its start and may have committed its state.
func (p *prover) chain() {
	next := &p.rings[len(p.rings)-1]
	next.counted, next.until = next.From, next.last
	p.report.Last = next.last
	behind := false
	for i := len(p.rings) - 2; i >= 0; i-- {
		r := &p.rings[i]
		if r.From >= next.From {
			continue
		}
		if behind = r.last < next.From || !next.follows(r); !behind {
			r.counted, r.until = r.From, next.From
			next = r
		}
	}
	if behind {
		p.find("no ring in the logs committed step %d, from which a later one started", next.From)
	}
	p.report.First = next.From + 1
}

// follows reports whether the ring's state may come from an earlier ring. A state of unknown
// generation, or of another run, may come from any ring. Otherwise the state's generation is the
// latest possible.
func (r *ring) follows(earlier *ring) bool {
	return r.Committed == 0 || r.Run != earlier.Run || earlier.Generation <= r.Committed
}
