package model_test

import (
	"fmt"
	"log"
	"math/rand/v2"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/model"
)

// gatedUnit is a cell of one's own, unrolled over y: [T, B, H] from Gorgonia's operators:
// f = sigmoid(y_t U), h = h + f ⊙ (tanh(y_t W) - h). It returns the last h: [B, H].
func gatedUnit(y, u, w, h *gorgonia.Node) *gorgonia.Node {
	for t := range y.Shape()[0] {
		yt := gorgonia.Must(gorgonia.Slice(y, gorgonia.S(t)))
		gate := gorgonia.Must(gorgonia.Sigmoid(gorgonia.Must(gorgonia.Mul(yt, u))))
		candidate := gorgonia.Must(gorgonia.Tanh(gorgonia.Must(gorgonia.Mul(yt, w))))
		change := gorgonia.Must(gorgonia.Sub(candidate, h))
		h = gorgonia.Must(gorgonia.Add(h, gorgonia.Must(gorgonia.HadamardProd(gate, change))))
	}
	return h
}

// A fused GRU reads tokens, a cell of Gorgonia's operators reads the GRU, and both learn to say
// which token came first.
func ExampleLayer() {
	const T, B, V, H = 4, 8, 3, 8
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	shape := compute.RecurrentShape{Cell: compute.GRU, T: T, B: B, D: V, H: H}
	layer, err := model.NewLayer(dev, "gru", shape, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer layer.Close()

	rng := rand.New(rand.NewPCG(1, 2))
	g := gorgonia.NewGraph()
	ids := make([]int32, T*B)
	wanted := make([]float32, B)
	for i := range ids {
		ids[i] = int32(rng.IntN(V))
	}
	for b := range wanted {
		wanted[b] = float32(ids[b])
	}
	weights := func(name string, shape ...int) *gorgonia.Node {
		x := make([]float32, tensor.Shape(shape).TotalSize())
		for i := range x {
			x[i] = float32(0.4 * rng.NormFloat64())
		}
		return gorgonia.NewTensor(g, tensor.Float32, len(shape), gorgonia.WithName(name),
			gorgonia.WithValue(tensor.New(tensor.WithShape(shape...), tensor.WithBacking(x))))
	}
	x := gorgonia.NewMatrix(g, tensor.Int32, gorgonia.WithName("ids"),
		gorgonia.WithValue(tensor.New(tensor.WithShape(T, B), tensor.WithBacking(ids))))
	target := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithName("target"),
		gorgonia.WithValue(tensor.New(tensor.WithShape(B, 1), tensor.WithBacking(wanted))))
	start := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithName("start"),
		gorgonia.WithValue(tensor.New(tensor.WithShape(B, H), tensor.Of(tensor.Float32))))
	learned := gorgonia.Nodes{
		weights("gru weights", model.Span(model.LayerLayout(shape))),
		weights("u", H, H), weights("w", H, H), weights("v", H, 1),
	}

	var machine gorgonia.VM
	var cost *gorgonia.Node
	err = model.Build(func() error {
		y, err := layer.Apply(x, learned[0])
		if err != nil {
			return err
		}
		h := gatedUnit(y, learned[1], learned[2], start)
		guess := gorgonia.Must(gorgonia.Mul(h, learned[3]))
		miss := gorgonia.Must(gorgonia.Sub(guess, target))
		cost = gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(miss))))
		if _, err := gorgonia.Grad(cost, learned...); err != nil {
			return err
		}
		machine = gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(learned...))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	defer machine.Close()

	solver := gorgonia.NewAdamSolver(gorgonia.WithLearnRate(0.02))
	var first, last float32
	for step := range 150 {
		machine.Reset()
		if err := machine.RunAll(); err != nil {
			log.Fatal(err)
		}
		if last = cost.Value().Data().(float32); step == 0 {
			first = last
		}
		if err := solver.Step(gorgonia.NodesToValueGrads(learned)); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("the error began above 0.5:", first > 0.5)
	fmt.Println("and ended below 0.01:", last < 0.01)
	// Output:
	// the error began above 0.5: true
	// and ended below 0.01: true
}
