//go:build cuda

package driver

// Await has what the stream is given next wait for the event: for what it was recorded after, last.
func (s *Stream) Await(e *Event) error {
	return s.context.do("cuStreamWaitEvent", func() error { return s.stream.Wait(e.event, 0) })
}
