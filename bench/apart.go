package bench

import (
	"context"
	"math"

	"rondo/compute"
)

// apart are a layer's passes over a segment, taken apart, in seconds. What noise hides is 0, and
// its time is in another part: together they take what the layer does.
type apart struct {
	recurrentForward, recurrentBackward float64 // h W_hh^T; d W_hh
	inputForward, inputBackward         float64 // x W_ih^T; d W_ih
	weightGradient                      float64 // d^T h and d^T x
	gates                               float64 // the rest
}

// What layerParts times.
const (
	forward         = iota // of the layer
	backward               // of the layer
	reluForward            // of a layer of ReLU units
	reluBackward           // of it
	recurrentBack          // d W_hh
	recurrentWeight        // d^T h
	inputForward           // x W_ih^T
	inputBack              // d W_ih
	inputWeight            // d^T x
	timed                  // how many they are
)

// layerParts measures a layer beside what its parts are compared with, in the same rounds.
//
// Layers have no clocks in them. An RNN of ReLU units, whose gates cost next to nothing, made so
// wide that it has as many recurrent weights, stands for all that is recurrent, with what packing
// the weights costs: forward for h W_hh^T, and backward for d W_hh and d^T h, in the ratio of what
// the two take as products of their own. So are x W_ih^T, d W_ih and d^T x measured.
func (l *lab) layerParts(ctx context.Context, width int) (apart, error) {
	defer l.free()
	s, n := l.shape, l.shape.Tokens()
	k, h := s.Cell.Gates(), s.Hidden
	layer := l.layer(s.Cell, h, width)
	defer layer.close()
	wide := wholeBlocks(float64(h) * math.Sqrt(float64(k)))
	relu := l.layer(compute.RNNReLU, wide, 0)
	defer relu.close()
	things := []func(){layer.forward, layer.backward, relu.forward, relu.backward,
		l.product(false, false, n, h, k*h), l.product(true, false, k*h, h, n)}
	if width > 0 {
		things = append(things, l.product(false, true, n, k*h, width),
			l.product(false, false, n, width, k*h), l.product(true, false, k*h, width, n))
	}
	took, err := l.rounds(ctx, things...)
	if err != nil {
		return apart{}, err
	}
	recurrent, input := l.recurrentFlops(), l.inputFlops(width)
	factor := float64(k) * float64(h) * float64(h) / (float64(wide) * float64(wide))
	for i, operations := range []float64{recurrent + input, 2 * (recurrent + input),
		recurrent / factor, 2 * recurrent / factor, recurrent, recurrent, input, input,
		input}[:len(things)] {
		l.did(operations, took[i])
	}
	for len(took) < timed { // there is no product with the input
		took = append(took, make([]float64, len(took[0])))
	}
	return takeApart(took, factor), nil
}

// wholeBlocks is a width near another of which nothing is padding.
func wholeBlocks(width float64) int {
	const block = 32
	return block * max(1, int(math.Round(width/block)))
}

// takeApart compares what layerParts has timed, [thing][round]; the layer of ReLU units counts by
// that factor.
//
// What a layer does beyond its products is its gates and the rest: differences within rounds, if
// they are more than noise. What is left of the layer's time is its products', in proportion: a
// little more or less than they took alone, and no more than all of it.
func takeApart(took [][]float64, factor float64) apart {
	var a apart
	rest, sure := above(differences(took[forward], factor, took[reluForward],
		took[inputForward]))
	a.recurrentForward = factor * Median(took[reluForward])
	a.inputForward = Median(took[inputForward])
	a.fit(rest, sure, Median(took[forward]), &a.recurrentForward, &a.inputForward)

	rest, sure = above(differences(took[backward], factor, took[reluBackward], took[inputBack],
		took[inputWeight]))
	back, weight := Median(took[recurrentBack]), Median(took[recurrentWeight])
	both := factor * Median(took[reluBackward])
	a.recurrentBackward = both * ratio(back, back+weight)
	a.inputBackward = Median(took[inputBack])
	a.weightGradient = both*ratio(weight, back+weight) + Median(took[inputWeight])
	a.fit(rest, sure, Median(took[backward]), &a.recurrentBackward, &a.inputBackward,
		&a.weightGradient)
	return a
}

// differences are, round by round, what a pass takes beyond a layer of ReLU units, which counts by
// the factor, and products.
func differences(pass []float64, factor float64, relu []float64, products ...[]float64) []float64 {
	rest := make([]float64, len(pass))
	for i := range rest {
		rest[i] = pass[i] - factor*relu[i]
		for _, product := range products {
			rest[i] -= product[i]
		}
	}
	return rest
}

// fit counts the rest of a pass, if that is sure, as gates, and stretches the products so that all
// is the whole.
func (a *apart) fit(rest float64, sure bool, whole float64, products ...*float64) {
	if sure {
		rest = min(rest, whole)
		a.gates += rest
		whole -= rest
	}
	sum := 0.0
	for _, p := range products {
		sum += *p
	}
	for _, p := range products {
		*p *= ratio(whole, sum)
	}
}
