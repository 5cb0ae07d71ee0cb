//go:build race

package job_test

// raced says whether the race detector is built in.
const raced = true
