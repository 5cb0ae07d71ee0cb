//go:build !amd64

package compress

func addScaledVector([]float32, []float32, float32) int { return 0 }

func dotVector([]float32, []float32) (int, float32) { return 0, 0 }
