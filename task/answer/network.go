package answer

import (
	"fmt"
	"math"
	"math/rand/v2"

	"rondo/compute"
	"rondo/model"
	"rondo/task/count"
	"rondo/task/memory"
	"rondo/train"
)

// Config is a network's shape. V: words; C: answers; H: width; K: hops; N: rows of the memory.
type Config struct {
	Words, Answers int // V, C
	Hidden         int // H
	Hops           int // K
	Rows           int // N: it remembers the last N sentences
	LayerWise      bool
	Position       bool // words are weighted by their places
	Temporal       bool // sentences have their age added
	Draws          int  // M, of hard attention: see paths; 0: soft
	Seed           uint64
}

// MaxHops bounds Config.Hops.
const MaxHops = 64

// tables is the number of embeddings: with adjacent tying A of a hop is C of the hop before, and B
// is A of the first; layer-wise, they are A, C and B.
func (c Config) tables() int {
	if c.LayerWise {
		return 3
	}
	return c.Hops + 1
}

// remembers is the number of embeddings that sentences have.
func (c Config) remembers() int {
	if c.LayerWise {
		return 2
	}
	return c.Hops + 1
}

// of returns the embeddings of a hop's inputs and outputs.
func (c Config) of(hop int) (in, out int) {
	if c.LayerWise {
		return 0, 1
	}
	return hop, hop + 1
}

// question is the embedding of the question.
func (c Config) question() int {
	if c.LayerWise {
		return 2
	}
	return 0
}

// Layout returns the tensors' places in the flat parameters.
func (c Config) Layout() []model.View {
	var all []compute.Tensor
	for i := range c.tables() {
		all = append(all, compute.Tensor{Name: fmt.Sprintf("embedding.%d.weight", i),
			Shape: []int{c.Words, c.Hidden}})
	}
	if c.Temporal {
		for i := range c.remembers() {
			all = append(all, compute.Tensor{Name: fmt.Sprintf("time.%d.weight", i),
				Shape: []int{c.Rows, c.Hidden}})
		}
	}
	if c.LayerWise {
		all = append(all, compute.Tensor{Name: "hop.weight", Shape: []int{c.Hidden, c.Hidden}})
	}
	return count.Place(append(all, compute.Tensor{Name: "output.weight",
		Shape: []int{c.Answers, c.Hidden}})...)
}

// parameters are the tensors of a flat slice.
type parameters[F memory.Float] struct {
	tables, times [][]F
	hop, output   []F
}

func split[F memory.Float](c Config, views []model.View, flat []F) (p parameters[F]) {
	next := func() []F {
		v := views[0]
		views = views[1:]
		return flat[v.Offset:][:v.Len]
	}
	for range c.tables() {
		p.tables = append(p.tables, next())
	}
	if c.Temporal {
		for range c.remembers() {
			p.times = append(p.times, next())
		}
	}
	if c.LayerWise {
		p.hop = next()
	}
	p.output = next()
	return p
}

// stream is the random stream of initial values.
const stream = 0x616e73776572 // "answer"

// deviation is that of the initial values: section 4.2 of the paper.
const deviation = 0.1

// Initialise draws all values from N(0, 0.1²).
func (c Config) Initialise(params []float32) {
	clear(params)
	rng := rand.New(rand.NewPCG(c.Seed, stream))
	for _, v := range c.Layout() {
		for i := range v.Len {
			params[v.Offset+i] = float32(deviation * rng.NormFloat64())
		}
	}
}

// pass is a pass over a story. It implements memory.Pass.
type pass[F memory.Float] struct {
	Config
	views   []model.View
	story   *Story
	kept    [][]int32 // sentences
	memory  [][]F     // [N, H] for each embedding of sentences
	state   [][]F     // [K+1, H]: the question, then each hop's
	weights [][]F     // [K, N]
	paths   paths[F]
	logits  []F // [C]
	ranks   []F // [H]: a word's weights
	score   train.Score

	dmemory           [][]F
	dstate, dbefore   []F // [H]
	dweights, dscores []F // [N]
}

func newPass[F memory.Float](c Config) *pass[F] {
	zeros, H := memory.Zeros[F], c.Hidden
	p := &pass[F]{Config: c, views: c.Layout(), logits: zeros(c.Answers), ranks: zeros(H),
		dstate: zeros(H), dbefore: zeros(H), dweights: zeros(c.Rows), dscores: zeros(c.Rows)}
	for range c.remembers() {
		p.memory = append(p.memory, zeros(c.Rows*H))
		p.dmemory = append(p.dmemory, zeros(c.Rows*H))
	}
	for range c.Hops {
		p.weights = append(p.weights, zeros(c.Rows))
	}
	for range c.Hops + 1 {
		p.state = append(p.state, zeros(H))
	}
	p.paths = newPaths[F](c)
	p.score = train.Score{Targets: 1, Counts: make([]int64, counters)}
	return p
}

// place sets ranks to the weights of word j of J in its sentence: section 4.1 of the paper.
func (p *pass[F]) place(j, J int) []F {
	for k := range p.ranks {
		p.ranks[k] = 1
		if p.Position {
			a, b := F(j+1)/F(J), F(k+1)/F(p.Hidden)
			p.ranks[k] = 1 - a - b*(1-2*a)
		}
	}
	return p.ranks
}

// embed adds the sum of a sentence's words, by their weights, to y.
func (p *pass[F]) embed(y, table []F, sentence []int32) {
	for j, word := range sentence {
		row := table[int(word)*p.Hidden:][:p.Hidden]
		for k, weight := range p.place(j, len(sentence)) {
			y[k] += weight * row[k]
		}
	}
}

// embedBackward adds the gradient of a sentence's words.
func (p *pass[F]) embedBackward(dtable, dy []F, sentence []int32) {
	for j, word := range sentence {
		row := dtable[int(word)*p.Hidden:][:p.Hidden]
		for k, weight := range p.place(j, len(sentence)) {
			row[k] += weight * dy[k]
		}
	}
}

// row is a row of a matrix [any, H].
func (p *pass[F]) row(matrix []F, i int) []F { return matrix[i*p.Hidden:][:p.Hidden] }

// age is the row of time of a sentence: the last has age 0.
func (p *pass[F]) age(i int) int { return len(p.kept) - 1 - i }

// Forward implements memory.Pass.
func (p *pass[F]) Forward(params []F, s *Story) train.Score {
	p.remember(split(p.Config, p.views, params), s)
	p.paths.begin(s)
	return p.forwardPaths(params)
}

// forwardPaths scores the paths of the story that is remembered.
func (p *pass[F]) forwardPaths(params []F) train.Score {
	w := split(p.Config, p.views, params)
	for path := range p.paths.losses {
		p.answer(w, path)
		p.paths.losses[path] = p.measure()
	}
	p.score.Loss = p.paths.mean()
	return p.score
}

// measure returns the loss of the logits, and sets the counts.
func (p *pass[F]) measure() (loss float64) {
	best, largest := 0, p.logits[0]
	for i, y := range p.logits {
		if y > largest {
			best, largest = i, y
		}
	}
	right := int(p.story.Answer)
	var sum float64
	for _, y := range p.logits {
		sum += math.Exp(float64(y - largest))
	}
	p.score.Counts[countRight] = 0
	if best == right {
		p.score.Counts[countRight] = 1
	}
	return math.Log(sum) - float64(p.logits[right]-largest)
}

// remember computes the memory and the state of the question.
func (p *pass[F]) remember(w parameters[F], s *Story) {
	p.story, p.kept = s, s.Sentences[max(0, len(s.Sentences)-p.Rows):]
	for e := range p.memory {
		for i, sentence := range p.kept {
			row := p.row(p.memory[e], i)
			clear(row)
			if p.Temporal {
				copy(row, p.row(w.times[e], p.age(i)))
			}
			p.embed(row, w.tables[e], sentence)
		}
	}
	clear(p.state[0])
	p.embed(p.state[0], w.tables[p.question()], s.Question)
}

// answer computes the logits of a path.
func (p *pass[F]) answer(w parameters[F], path int) {
	n := len(p.kept)
	for hop := range p.Hops {
		u, next := p.state[hop], p.state[hop+1]
		if clear(next); p.LayerWise {
			memory.Multiply(next, w.hop, u)
		} else {
			copy(next, u)
		}
		if n == 0 {
			continue
		}
		in, out := p.of(hop)
		weights := p.weights[hop][:n]
		clear(weights)
		memory.Multiply(weights, p.memory[in][:n*p.Hidden], u)
		memory.Softmax(weights, weights)
		if p.Draws > 0 {
			p.paths.read[hop] = p.paths.choose(path, hop, weights)
			memory.Add(next, p.row(p.memory[out], p.paths.read[hop]))
		} else {
			memory.MultiplyTransposed(next, p.memory[out][:n*p.Hidden], weights)
		}
	}
	clear(p.logits)
	memory.Multiply(p.logits, w.output, p.state[p.Hops])
}

// Backward implements memory.Pass.
func (p *pass[F]) Backward(params, gradients []F, scale F) {
	w, d := split(p.Config, p.views, params), split(p.Config, p.views, gradients)
	for e := range p.dmemory {
		clear(p.dmemory[e][:len(p.kept)*p.Hidden])
	}
	n := len(p.paths.losses)
	for path := range n {
		if n > 1 { // the logits are the last path's
			p.answer(w, path)
		}
		p.answerBackward(w, d, path, scale/F(n))
	}
	for e := range p.dmemory {
		for i, sentence := range p.kept {
			row := p.row(p.dmemory[e], i)
			if p.Temporal {
				memory.Add(p.row(d.times[e], p.age(i)), row)
			}
			p.embedBackward(d.tables[e], row, sentence)
		}
	}
}

// answerBackward adds scale times the gradient of a path. It overwrites the logits.
func (p *pass[F]) answerBackward(w, d parameters[F], path int, scale F) {
	s := p.story
	memory.Softmax(p.logits, p.logits)
	p.logits[s.Answer]--
	for i := range p.logits {
		p.logits[i] *= scale
	}
	memory.AddOuter(d.output, p.logits, p.state[p.Hops])
	clear(p.dstate)
	memory.MultiplyTransposed(p.dstate, w.output, p.logits)
	for hop := p.Hops - 1; hop >= 0; hop-- {
		u := p.state[hop]
		if clear(p.dbefore); p.LayerWise {
			memory.MultiplyTransposed(p.dbefore, w.hop, p.dstate)
			memory.AddOuter(d.hop, p.dstate, u)
		} else {
			copy(p.dbefore, p.dstate)
		}
		if len(p.kept) > 0 {
			p.attendBackward(hop, path, u, scale)
		}
		p.dstate, p.dbefore = p.dbefore, p.dstate
	}
	p.embedBackward(d.tables[p.question()], p.dstate, s.Question)
}

// attendBackward adds to the gradients of the memory and of a hop's state u, dbefore, given that
// of the state after it, dstate.
func (p *pass[F]) attendBackward(hop, path int, u []F, scale F) {
	in, out := p.of(hop)
	n := len(p.kept)
	weights, dweights, dscores := p.weights[hop][:n], p.dweights[:n], p.dscores[:n]
	if p.Draws > 0 {
		read := p.paths.read[hop]
		memory.Add(p.row(p.dmemory[out], read), p.dstate)
		// The gradient of log weights[read]: divided by that weight first, a small one overflows.
		a := scale * F(p.paths.advantage(path))
		for i, weight := range weights {
			dscores[i] = -a * weight
		}
		dscores[read] = a * (1 - weights[read])
	} else {
		clear(dweights)
		clear(dscores)
		memory.Multiply(dweights, p.memory[out][:n*p.Hidden], p.dstate)
		memory.AddOuter(p.dmemory[out][:n*p.Hidden], weights, p.dstate)
		memory.SoftmaxBackward(dscores, weights, dweights)
	}
	memory.MultiplyTransposed(p.dbefore, p.memory[in][:n*p.Hidden], dscores)
	memory.AddOuter(p.dmemory[in][:n*p.Hidden], dscores, u)
}

// Workspace is the floats of a pass.
func (c Config) Workspace() int {
	return 2*c.remembers()*c.Rows*c.Hidden + c.Hops*(c.Rows+c.Hidden) + c.Answers
}
