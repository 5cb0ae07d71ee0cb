//go:build cuda && !lint

package driver

import "gorgonia.org/cu"

// This is undefined unless cu is the copy that scripts/cuda.sh makes: run `make cuda`, or before go
// build: eval "$(scripts/cuda.sh env)" (docs/gpu.md). The linter reads the module itself.
const _ = cu.MadeByScriptsCudaSh
