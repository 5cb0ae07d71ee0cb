package allreduce_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"rondo/allreduce"
	"rondo/allreduce/linktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryRing connects world ranks by memory links.
func memoryRing(_ *testing.T, world int) []linktest.Node { return connect(world) }

func connect(world int) []linktest.Node {
	nodes := make([]linktest.Node, world)
	if world == 1 {
		return nodes
	}
	for rank := range world {
		next := (rank + 1) % world
		nodes[rank].Successor, nodes[next].Predecessor = allreduce.Pipe(peer(rank), peer(next))
	}
	return nodes
}

func peer(rank int) allreduce.Peer {
	return allreduce.Peer{
		Rank:    allreduce.Rank(rank),
		Address: fmt.Sprintf("host-%c:7000", 'a'+rank),
	}
}

func TestMemoryLink(t *testing.T) { linktest.Run(t, memoryRing) }

func BenchmarkAllReduce(b *testing.B) {
	linktest.Benchmark(b, func(_ *testing.B, world int) []linktest.Node { return connect(world) })
}
