package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"rondo/corpus"
)

// maxFindings is the largest number of findings in a report.
const maxFindings = 100

// Report is the result of a proof. If it has no findings, each lane was read exactly once, at its
// position, in each step from First to Last, and all workers had the same parameters before and
// after each step. Of examples, none was read twice in an epoch, and each once in the whole Epochs.
type Report struct {
	First    int64 `json:"first"`    // first step of the logged history
	Last     int64 `json:"last"`     // First-1 if nothing was committed
	Lanes    int   `json:"lanes"`    // lanes of the batch
	Each     int   `json:"each"`     // segments per lane and step
	Segments int64 `json:"segments"` // segments read in the steps that count
	Runs     int   `json:"runs"`
	Rings    int   `json:"rings"`
	Workers  int   `json:"workers"`  // number of logs
	Repeated int64 `json:"repeated"` // attempts at a step that do not count
	// Again is the number of segments that were read in these attempts. Replayed is the number of
	// those that were read to compute lost states of lanes.
	Again    int64 `json:"segments_repeated"`
	Replayed int64 `json:"segments_replayed"`
	// Skipped is the number of steps from First to Last whose gradient was not used. Skips
	// names the first maxFindings stretches of them.
	Skipped int64  `json:"skipped"`
	Skips   []Skip `json:"skips"`
	// Corrupt names the workers that had other parameters than most after a step, and took no part
	// in another: "a after step 9".
	Corrupt  []string `json:"corrupt"`
	States   int      `json:"checkpoints"` // checkpoints that have the parameters of their step
	Torn     int      `json:"torn"`        // logs with an incomplete last line
	Examples bool     `json:"examples"`    // lanes read examples, not a text
	Epochs   int64    `json:"epochs"`      // of examples: whole epochs that read each once
	Tokens   bool     `json:"tokens"`      // whether tokens were compared, not only positions
	Findings []string `json:"findings"`    // the first maxFindings
	More     int64    `json:"more"`        // number of further findings
}

// Skip is a stretch of skipped steps of one ring, with one culprit.
type Skip struct {
	First      int64  `json:"first"`
	Last       int64  `json:"last"`
	Generation uint64 `json:"generation"`
	Nonfinite  int    `json:"nonfinite"`        // ranks that were not finite; 0: only their sum was not
	Rank       int    `json:"rank"`             // the rank, if Nonfinite is 1
	Worker     string `json:"worker"`           // of that rank
	Random     bool   `json:"random,omitempty"` // random steps were taken in their place
}

func (s Skip) String() string {
	if s.Random {
		s.Random = false
		return s.String() + "; random steps were taken instead"
	}
	steps := fmt.Sprintf("step %d", s.First)
	if s.Last > s.First {
		steps = fmt.Sprintf("steps %d to %d", s.First, s.Last)
	}
	switch s.Nonfinite {
	case 0:
		return steps + ": the sum of all ranks was not finite"
	case 1:
		return fmt.Sprintf("%s: rank %d (%s) was not finite", steps, s.Rank, s.Worker)
	}
	return fmt.Sprintf("%s: %d ranks were not finite", steps, s.Nonfinite)
}

// State is a stored state of the job: a checkpoint.
type State struct {
	Step   int64
	Digest uint64 // of its parameters: see Commit; 0: not known
	Path   string // for findings
	Damage string // not empty: the state is damaged in this way, which is a finding
}

// Sound reports whether there are no findings.
func (r *Report) Sound() bool { return len(r.Findings) == 0 }

// Prove reads all logs of a job. tokens may be the job's training tokens; then Prove also compares
// what was read with the text. states are the job's checkpoints, if they are to be proved too.
// Problems in the logs are findings; the error is only one of reading.
//
// Memory holds one ring at a time, with a line and a buffer per worker, and a few words for each
// ring of each worker, and for each state.
func Prove(
	ctx context.Context, logs fs.FS, tokens corpus.Tokens, states []State,
) (*Report, error) {
	p := &prover{logs: logs, tokens: tokens, wanted: map[int64]bool{}}
	p.report.Tokens, p.report.Findings = tokens != nil, []string{}
	p.report.Skips, p.report.Corrupt = []Skip{}, []string{}
	for _, s := range states {
		p.wanted[s.Step] = true
	}
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
	if err := p.link(ctx); err != nil {
		return nil, fmt.Errorf("audit logs: %w", err)
	}
	p.proveStates(states)
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
	wanted   map[int64]bool       // steps whose digests are compared between rings or with states
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
		a.From, a.World, a.SyncEvery, a.Digest = b.From, b.World, b.SyncEvery, b.Digest
		a.Replayed = b.Replayed
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
		{"parameters of digest", a.Digest, b.Digest},
		{"replayed segments", a.Replayed, b.Replayed},
		{"--sync-every", a.SyncEvery, b.SyncEvery},
	} {
		if d.a != d.b {
			all = append(all, fmt.Sprintf("%s %v and %v", d.what, d.a, d.b))
		}
	}
	return strings.Join(all, ", ")
}

// link groups the sections by ring and finds the chain of rings.
func (p *prover) link(ctx context.Context) error {
	for _, s := range p.sections {
		if n := len(p.rings); n == 0 || !p.rings[n-1].contains(s) {
			p.rings = append(p.rings, ring{ringLine: s.ring, last: s.ring.From})
			if n == 0 || p.rings[n-1].Run != s.ring.Run {
				p.report.Runs++
			}
		}
		r := &p.rings[len(p.rings)-1]
		p.wanted[s.ring.From] = true
		if s.ring.of(r.Rank) != r.ringLine {
			p.find("%s line %d: the ring of generation %d differs from %s: %s", s.file, s.line,
				s.ring.Generation, r.sections[0].file, differences(s.ring, r.ringLine, false))
		}
		r.sections = append(r.sections, s)
		r.last = max(r.last, s.last)
	}
	p.report.Rings = len(p.rings)
	for _, s := range p.sections {
		if err := p.collect(ctx, s); err != nil {
			return err
		}
	}
	p.chain()
	return nil
}

// chain walks from the last ring backwards, and sets which steps of each ring count.
func (p *prover) chain() {
	at := len(p.rings) - 1
	next := &p.rings[at]
	next.counted, next.until = next.From, next.last
	p.report.Last = next.last
	for {
		p.report.Replayed += next.Replayed
		before, sure := p.predecessor(at)
		if before < 0 {
			break
		}
		r := &p.rings[before]
		if !sure {
			p.find("generation %d starts from other parameters than the ring of generation %d "+
				"had after step %d", next.Generation, r.Generation, next.From)
		}
		r.counted, r.until = r.From, next.From
		at, next = before, r
	}
	p.report.First = next.From + 1
}

// predecessor finds the ring from whose state the ring at an index starts: the latest one before it
// that committed the step, with the same parameters. If there are none with the same, it is the
// latest one that committed the step, and sure is false. It is -1 if there is none.
func (p *prover) predecessor(at int) (before int, sure bool) {
	next := &p.rings[at]
	before, earlier := -1, false
	for i := at - 1; i >= 0; i-- {
		r := &p.rings[i]
		if r.From >= next.From {
			continue
		}
		earlier = true
		if r.last < next.From {
			continue
		}
		if r.digest(next.From) == next.Digest {
			return i, true
		}
		if before < 0 {
			before = i
		}
	}
	if earlier && before < 0 {
		p.find("no ring in the logs committed step %d, from which a later one started", next.From)
	}
	return before, false
}

// digest returns the digest that most of the ring's workers had after a wanted step. It is 0 if no
// digest is that of more than half of them.
func (r *ring) digest(step int64) uint64 {
	counts, all := map[uint64]int{}, 0
	for _, s := range r.sections {
		if digest, committed := s.digests[step]; committed {
			counts[digest]++
			all++
		}
	}
	for digest, n := range counts {
		if 2*n > all {
			return digest
		}
	}
	return 0
}

// proveStates checks that each state has the parameters that the chain of rings had at its step.
func (p *prover) proveStates(states []State) {
	for _, s := range states {
		i := slices.IndexFunc(p.rings, func(r ring) bool {
			return r.counted < s.Step && s.Step <= r.until
		})
		switch {
		case s.Damage != "":
			p.find("%s", s.Damage)
		case s.Step < p.report.First:
			continue // the logs begin later
		case i < 0:
			p.find("%s is of step %d, and the last step in the logs is %d", s.Path, s.Step,
				p.report.Last)
		case s.Digest == 0:
			p.find("%s has no digest: a rondo of an older version saved it", s.Path)
		case p.rings[i].digest(s.Step) != s.Digest:
			p.find("%s has other parameters than the ring of generation %d had after step %d",
				s.Path, p.rings[i].Generation, s.Step)
		default:
			p.report.States++
		}
	}
}
