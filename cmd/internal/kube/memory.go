package kube

import (
	"fmt"

	rondov1 "rondo/proto/rondo/v1"
)

func memoryFor(spec *rondov1.JobSpec, gpu bool) string {
	return fmt.Sprintf("%dMi", 1024)
}
