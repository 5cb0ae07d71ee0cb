package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"rondo/bench/busbw"
	"rondo/internal/procgroup"
)

// peerTimeout bounds a turn of Gloo's side; the first one also loads PyTorch. endTimeout bounds its
// end.
const (
	peerTimeout = 2 * time.Minute
	endTimeout  = time.Minute
)

// gloo is the ranks of Gloo's side, which wait for orders.
type gloo struct {
	process *exec.Cmd
	orders  io.WriteCloser
	rows    *json.Decoder
	kill    context.CancelFunc
}

// startGloo starts them.
func startGloo(ctx context.Context, command []string, log io.Writer) (*gloo, error) {
	ctx, kill := context.WithCancel(ctx)
	process := exec.CommandContext(ctx, command[0], command[1:]...)
	// Not in our process group: Ctrl-C reaches it once, from here.
	procgroup.Set(process)
	process.Cancel = func() error { return procgroup.Signal(process.Process.Pid, syscall.SIGTERM) }
	process.WaitDelay = endTimeout
	process.Stderr = log
	g := &gloo{process: process, kill: kill}
	rows, err := process.StdoutPipe()
	if err == nil {
		g.orders, err = process.StdinPipe()
	}
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		kill()
		return nil, err
	}
	g.rows = json.NewDecoder(rows)
	return g, nil
}

// measure has them measure a size once more.
func (g *gloo) measure(bytes int) (busbw.Row, error) {
	var row busbw.Row
	late := time.AfterFunc(peerTimeout, g.kill)
	defer late.Stop()
	if _, err := fmt.Fprintln(g.orders, bytes); err != nil {
		return row, err
	}
	if err := g.rows.Decode(&row); err != nil {
		return row, fmt.Errorf("no row for %d bytes: %w", bytes, err)
	}
	if row.Bytes != bytes || !(row.MS > 0) {
		return row, fmt.Errorf("a row that is none for %d bytes: %+v", bytes, row)
	}
	return row, nil
}

// end has them end, and returns how they did.
func (g *gloo) end() error {
	g.orders.Close()
	late := time.AfterFunc(endTimeout, g.kill)
	defer late.Stop()
	defer g.kill()
	return g.process.Wait()
}
