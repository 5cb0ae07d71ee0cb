//go:build cuda

package cuda

import (
	"fmt"
	"testing"

	"rondo/compute"
)

// gpu is what a plan is for.
type gpu struct{ multiprocessors, shared int }

func h200() gpu     { return gpu{132, 227 << 10} }
func v100() gpu     { return gpu{80, 96 << 10} }
func emulated() gpu { return gpu{16, 227 << 10} }

func (g gpu) plan(c compute.Cell, o operands, b, h int, backward bool) (persistentPlan, bool) {
	return planPersistent(compute.RecurrentShape{Cell: c, T: 64, B: b, D: 1, H: h}, o,
		g.multiprocessors, g.shared, backward)
}

// TestPersistentPlan says what is planned for the layers that people train.
func TestPersistentPlan(t *testing.T) {
	const back, lstm, gru = true, compute.LSTM, compute.GRU
	for _, c := range []struct {
		gpu      gpu
		cell     compute.Cell
		operands operands
		h, b     int
		backward bool
		want     string // units x slices x groups x passes
	}{
		{h200(), lstm, operandBF16, 256, 1, false, "8x32x1x1"},
		{h200(), lstm, operandBF16, 256, 32, false, "8x32x2x1"}, // textbook
		{h200(), lstm, operandBF16, 256, 32, back, "16x16x2x1"},
		{h200(), lstm, operandBF16, 256, 128, false, "8x32x4x2"},
		{h200(), lstm, operandBF16, 256, 128, back, "32x8x8x1"},
		{h200(), lstm, operandBF16, 512, 64, false, "8x64x2x2"},
		{h200(), lstm, operandBF16, 512, 64, back, "32x16x4x1"},
		{h200(), lstm, operandBF16, 650, 20, false, "8x84x1x2"},
		{h200(), lstm, operandBF16, 1024, 64, false, "16x64x2x2"},
		{h200(), lstm, operandBF16, 1024, 64, back, "32x32x4x1"},
		{h200(), lstm, operandFP16, 1024, 128, false, "16x64x2x4"},
		{h200(), lstm, operandBF16, 1024, 512, false, "no"}, // a product of so many lanes is better
		{h200(), lstm, operandBF16, 2048, 1, false, "16x128x1x1"},
		{h200(), lstm, operandBF16, 2048, 1, back, "16x128x1x1"},
		{h200(), lstm, operandBF16, 2128, 1, false, "no"},
		{h200(), gru, operandBF16, 1024, 64, false, "16x64x2x2"},
		{h200(), gru, operandBF16, 1024, 64, back, "32x32x4x1"},
		{h200(), lstm, operandTF32, 1024, 32, false, "16x64x2x1"},
		{h200(), lstm, operandFP32, 256, 32, false, "8x32x2x1"},
		{h200(), lstm, operandFP32, 1024, 1, false, "8x128x1x1"},
		{h200(), lstm, operandFP32, 2048, 32, false, "no"},
		{h200(), compute.RNNTanh, operandBF16, 1024, 64, false, "16x64x2x2"},
		{h200(), compute.GRUResetBefore, operandBF16, 256, 32, false, "no"},
		{v100(), lstm, operandFP32, 256, 32, false, "8x32x2x1"},
		{v100(), lstm, operandFP32, 512, 64, false, "8x64x1x4"},
		{v100(), lstm, operandFP32, 1024, 1, false, "no"},
		{v100(), lstm, operandBF16, 512, 64, false, "16x32x2x2"},
		{emulated(), lstm, operandBF16, 40, 17, false, "8x8x2x1"},
		{emulated(), lstm, operandBF16, 256, 20, false, "16x16x1x2"},
		{emulated(), lstm, operandFP32, 136, 4, false, "no"},
		{emulated(), lstm, operandFP32, 136, 4, back, "16x9x1x1"},
	} {
		got := "no"
		if p, ok := c.gpu.plan(c.cell, c.operands, c.b, c.h, c.backward); ok {
			got = fmt.Sprintf("%dx%dx%dx%d", p.units, p.slices, p.groups, p.passes)
		}
		if got != c.want {
			t.Errorf("%+v %v %v H %d B %d back=%t: %s, want %s", c.gpu, c.cell, c.operands,
				c.h, c.b, c.backward, got, c.want)
		}
	}
}

// TestPersistentPlanCovers wants of every plan that it fits its GPU and has each unit, lane and
// column once, in kernels that there are.
func TestPersistentPlanCovers(t *testing.T) {
	plans := 0
	for _, g := range []gpu{h200(), v100(), emulated()} {
		for i := range 4 * 4 * 2 * 9 * 7 {
			cell, o := persistentCells()[i%4], operands(i/4%4)
			backward, h := i/16%2 == 1, []int{1, 16, 40, 255, 256, 650, 1024, 1500, 2048}[i/32%9]
			b := []int{1, 8, 17, 32, 64, 100, 128}[i/288]
			if backward && o == operandFP16 {
				continue
			}
			p, ok := g.plan(cell, o, b, h, backward)
			if !ok {
				continue
			}
			plans++
			rows, size := cell.Gates()*p.units, 4
			if backward {
				rows = p.units
			}
			if o == operandBF16 || o == operandFP16 {
				size = 2
			}
			width := p.slices * p.units * size
			if backward {
				width *= cell.Gates()
			}
			if p.slices*p.groups > g.multiprocessors || p.shared > g.shared ||
				rows > 16*p.rowTiles || p.slices*p.units < h || p.slices*p.units >= h+64 ||
				16*p.tiles < b || p.groups*p.passes < p.tiles ||
				(p.groups-1)*p.passes >= p.tiles || p.columns*persistentColumn != width {
				t.Errorf("%+v %v %v H %d B %d back=%t: %+v", g, cell, o, h, b, backward, p)
			}
		}
	}
	if plans < 500 {
		t.Errorf("%d plans", plans)
	}
}

// TestPersistentPlanCounts wants no plan where a state's place, of T+1, does not fit in 32 bits.
func TestPersistentPlanCounts(t *testing.T) {
	s := compute.RecurrentShape{Cell: compute.RNNTanh, B: 48, D: 1, H: 1024}
	for _, c := range []struct {
		steps int
		want  bool
	}{{43689, true}, {43690, false}} {
		s.T = c.steps
		g := h200()
		_, ok := planPersistent(s, operandBF16, g.multiprocessors, g.shared, false)
		if ok != c.want {
			t.Errorf("%d steps, %d floats of states: a plan: %t", s.T, (s.T+1)*s.B*s.H, ok)
		}
	}
}

// TestPersistentKernelNames wants every kernel that can be planned to be in the GPU's modules.
func TestPersistentKernelNames(t *testing.T) {
	d := newGPU(t, compute.BF16)
	for _, o := range []operands{operandFP32, operandTF32, operandBF16, operandFP16} {
		for _, backward := range []bool{false, true} {
			if d.queue.info.Major < 8 && o != operandFP32 || backward && o == operandFP16 {
				continue
			}
			for _, k := range persistentKernels(o, backward) {
				d.queue.kernel(persistentKernel(&persistentPlan{rowTiles: k.rowTiles}, o, backward))
			}
		}
	}
}
