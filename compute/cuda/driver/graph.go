//go:build cuda

package driver

// #include "driver.h"
import "C"

// Graph is work that a stream was given, to be done again at once.
type Graph struct {
	context *Context
	exec    C.CUgraphExec
	Nodes   int // kernels, copies and fills
}

// BeginCapture makes the stream record its work instead of doing it. The mode is relaxed: the two
// others bind a capture to one thread, which a goroutine may leave, and forbid allocations during
// it.
func (s *Stream) BeginCapture() error {
	return s.context.do("cuStreamBeginCapture", func() error {
		return failed("cuStreamBeginCapture",
			C.cuStreamBeginCapture(s.c(), C.CU_STREAM_CAPTURE_MODE_RELAXED))
	})
}

// EndCapture returns the recorded work. After an error the stream works as before.
func (s *Stream) EndCapture() (*Graph, error) {
	g := &Graph{context: s.context}
	err := s.context.do("cuStreamEndCapture", func() error {
		kept := C.rondo_end_capture(s.c())
		if kept.result != C.CUDA_SUCCESS {
			return failed("cuStreamEndCapture", kept.result)
		}
		graph := C.CUgraph(kept.it)
		defer C.cuGraphDestroy(graph)
		var nodes C.size_t
		if err := failed("cuGraphGetNodes", C.cuGraphGetNodes(graph, nil, &nodes)); err != nil {
			return err
		}
		g.Nodes = int(nodes)
		made := C.rondo_instantiate(graph)
		g.exec = C.CUgraphExec(made.it)
		return failed("cuGraphInstantiateWithFlags", made.result)
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Replay enqueues the work.
func (s *Stream) Replay(g *Graph) error {
	return s.context.do("cuGraphLaunch", func() error {
		return failed("cuGraphLaunch", C.cuGraphLaunch(g.exec, s.c()))
	})
}

// Close gives the graph back.
func (g *Graph) Close() error {
	return g.context.do("cuGraphExecDestroy", func() error {
		return failed("cuGraphExecDestroy", C.cuGraphExecDestroy(g.exec))
	})
}
