//go:build !amd64

package allreduce

// This platform has no vector functions: the loops process all numbers.

func encodeVector([]byte, []float32, Element) int { return 0 }

func encodeFeedbackVector(_ []byte, _, _ []float32, _ Element) int { return 0 }

func decodeVector([]float32, []byte, Element) int { return 0 }

func addDecodedVector([]float32, []byte, Element) int { return 0 }

func addEncodeVector(_ []byte, _ []float32, _ []byte, _ Element) int { return 0 }

func addSettleVector(_ []byte, _ []float32, _ []byte, _ Element) int { return 0 }
