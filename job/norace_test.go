//go:build !race

package job_test

// raced reports whether the race detector is built in.
const raced = false
