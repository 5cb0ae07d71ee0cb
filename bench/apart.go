package bench

import (
	"context"
	"math"

	"rondo/compute"
)

// apart holds the parts of a layer's passes over a segment, in seconds. A part below the noise is
// 0, and its time is in another part: together they are the layer's time.
type apart struct {
	recurrentForward, recurrentBackward float64 // h W_hh^T; d W_hh
	inputForward, inputBackward         float64 // x W_ih^T; d W_ih
	weightGradient                      float64 // d^T h and d^T x
	gates                               float64 // the rest
}

// The things that layerParts times.
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

// layerParts times a layer and, in the same rounds, the things that its parts are compared with.
//
// A layer has no clocks inside. An RNN of ReLU units has next to no gates. Made wide enough to have
// as many recurrent weights, it stands for the recurrent part with its packing of the weights:
// forward for h W_hh^T, and backward for d W_hh and d^T h, in the ratio of these two products
// measured alone. x W_ih^T, d W_ih and d^T x are measured as products, too.
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

// wholeBlocks returns a width near the given one at which nothing is padded.
func wholeBlocks(width float64) int {
	const block = 32
	return block * max(1, int(math.Round(width/block)))
}

// takeApart divides a layer's time into its parts, from layerParts' times, [thing][round]. factor
// is the weight of the layer of ReLU units.
//
// The gates and the rest are the time beyond the products: differences within rounds, if they
// exceed the noise. The remaining time belongs to the products, in the proportion that they took
// alone.
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

// differences returns, for each round, the time of a pass beyond its products and beyond factor
// times a layer of ReLU units.
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
