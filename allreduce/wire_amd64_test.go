package allreduce

import (
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/cpu"
)

// TestBFloat16Vectors tests the AVX2 forms too, which this machine may not choose.
func TestBFloat16Vectors(t *testing.T) {
	src := awkwardFloats(rand.New(rand.NewPCG(7, 7)))
	n := len(src) &^ 15
	src = src[:n]
	residual := make([]float32, n)
	plain, want, lost := make([]byte, 2*n), make([]byte, 2*n), slices.Clone(residual)
	encodeLoop(plain, src, BFloat16)
	encodeFeedbackLoop(want, src, lost, BFloat16)
	for _, v := range []struct {
		name     string
		has      bool
		encode   func(dst *byte, src *float32, n int)
		feedback func(dst *byte, src, residual *float32, n int)
	}{
		{"AVX2", cpu.X86.HasAVX2, encodeBFloat16AVX2, encodeFeedbackBFloat16AVX2},
		{"AVX-512", cpu.X86.HasAVX512F, encodeBFloat16AVX512, encodeFeedbackBFloat16AVX512},
	} {
		if !v.has {
			t.Logf("this machine has no %s", v.name)
			continue
		}
		got, kept := make([]byte, 2*n), slices.Clone(residual)
		v.encode(&got[0], &src[0], n)
		if !slices.Equal(got, plain) {
			t.Errorf("%s: encode differs from the loop", v.name)
		}
		clear(got)
		v.feedback(&got[0], &src[0], &kept[0], n)
		if !slices.Equal(got, want) || !slices.Equal(Bytes(kept), Bytes(lost)) {
			t.Errorf("%s: encodeFeedback differs from the loop", v.name)
		}
	}
}
