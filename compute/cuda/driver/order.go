//go:build cuda

package driver

// Await makes the stream's later work wait for the event's last recording.
func (s *Stream) Await(e *Event) error {
	return s.context.do("cuStreamWaitEvent", func() error { return s.stream.Wait(e.event, 0) })
}
