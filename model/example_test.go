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

// gatedUnit is a custom cell, unrolled over y: [T, B, H] with Gorgonia's operators: f = sigmoid(y_t
// U), h = h + f ⊙ (tanh(y_t W) - h). It returns the last h: [B, H].
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

// input adds an input node with these values.
func input[E int32 | float32](g *gorgonia.ExprGraph, name string, x []E,
	shape ...int) *gorgonia.Node {
	value := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(x))
	return gorgonia.NewTensor(g, value.Dtype(), len(shape), gorgonia.WithName(name),
		gorgonia.WithValue(value))
}

// random returns n numbers from N(0, 0.4^2).
func random(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(0.4 * rng.NormFloat64())
	}
	return x
}

// learn runs steps of Adam and returns the first and the last cost.
func learn(machine gorgonia.VM, cost *gorgonia.Node, weights gorgonia.Nodes, steps int) (
	first, last float32, err error) {
	solver := gorgonia.NewAdamSolver(gorgonia.WithLearnRate(0.02))
	for step := range steps {
		machine.Reset()
		if err := machine.RunAll(); err != nil {
			return 0, 0, err
		}
		if last = cost.Value().Data().(float32); step == 0 {
			first = last
		}
		if err := solver.Step(gorgonia.NodesToValueGrads(weights)); err != nil {
			return 0, 0, err
		}
	}
	return first, last, nil
}

// A fused GRU reads tokens, and a cell of Gorgonia's operators reads the GRU. Both learn to tell
// which token came first.
func ExampleLayer() {
	const T, B, V, H = 4, 8, 3, 8
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		log.Fatal(err)
	}
	shape := compute.RecurrentShape{Cell: compute.GRU, T: T, B: B, D: V, H: H}
	layer, err := model.NewLayer(dev, "gru", shape, nil)
	if err != nil {
		log.Fatal(err)
	}

	rng := rand.New(rand.NewPCG(1, 2))
	ids, first := make([]int32, T*B), make([]float32, B)
	for i := range ids {
		ids[i] = int32(rng.IntN(V))
	}
	for b := range first {
		first[b] = float32(ids[b])
	}
	g := gorgonia.NewGraph()
	size := model.Span(model.LayerLayout(shape))
	weights := gorgonia.Nodes{
		input(g, "gru weights", random(rng, size), size),
		input(g, "u", random(rng, H*H), H, H),
		input(g, "w", random(rng, H*H), H, H),
		input(g, "v", random(rng, H), H, 1),
	}
	var machine gorgonia.VM
	var cost *gorgonia.Node
	err = model.Build(func() error {
		y, err := layer.Apply(input(g, "ids", ids, T, B), weights[0])
		if err != nil {
			return err
		}
		start := input(g, "start", make([]float32, B*H), B, H)
		h := gatedUnit(y, weights[1], weights[2], start)
		guess := gorgonia.Must(gorgonia.Mul(h, weights[3]))
		miss := gorgonia.Must(gorgonia.Sub(guess, input(g, "first", first, B, 1)))
		cost = gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(miss))))
		if _, err := gorgonia.Grad(cost, weights...); err != nil {
			return err
		}
		machine = gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(weights...))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	began, ended, err := learn(machine, cost, weights, 150)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the error began above 0.5:", began > 0.5)
	fmt.Println("and ended below 0.01:", ended < 0.01)
	machine.Close()
	layer.Close()
	dev.Close()
	// Output:
	// the error began above 0.5: true
	// and ended below 0.01: true
}
