package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"
)

// Limits of the stream of changes.
const (
	streamLimit   = 64               // clients at a time
	streamBacklog = 16               // messages queued per client; a slower client is dropped
	streamPause   = time.Second / 2  // between two messages
	streamWrite   = 10 * time.Second // to write one message
	streamIdle    = 15 * time.Second // between messages that keep the connection alive
)

// Server serves a board: the page at /, its state at /api/state, and its changes as server-sent
// events at /api/events. Run sends the changes.
type Server struct {
	board *Board
	page  page

	mu       sync.Mutex
	watching int // clients, including those that are about to join
	streams  map[*stream]struct{}
	joined   chan *stream
	closed   bool
}

// stream is the queue of one client.
type stream struct {
	messages chan []byte
}

// NewServer returns a server of a board.
func NewServer(board *Board) *Server {
	return &Server{board: board, page: newPage(), streams: make(map[*stream]struct{}),
		joined: make(chan *stream)}
}

// Register adds the server's paths to a mux.
func (s *Server) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", s.page.serve)
	mux.HandleFunc("GET /api/state", s.state)
	mux.HandleFunc("GET /api/events", s.events)
}

func (s *Server) state(w http.ResponseWriter, _ *http.Request) {
	body, err := json.Marshal(s.board.State())
	if err != nil {
		http.Error(w, "the state cannot be written: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n')) // a client that has gone needs no answer
}

// Run sends changes to all clients until ctx ends. Then it sends the last changes and ends all
// streams.
func (s *Server) Run(ctx context.Context) error {
	defer s.end()
	sent, changed := s.board.snapshot()
	var pause <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			s.broadcastLast(sent, changed)
			return ctx.Err()
		case <-changed:
			pause, changed = time.After(streamPause), nil
		case <-pause:
			var now State
			now, changed = s.board.snapshot()
			pause = nil
			s.broadcast(sent, now)
			sent = now
		case newcomer := <-s.joined:
			s.mu.Lock()
			s.streams[newcomer] = struct{}{}
			s.mu.Unlock()
			newcomer.messages <- message("state", members(sent)) // never blocks: its first message
		}
	}
}

// broadcastLast sends the changes since the last message, for example how the job ended. changed is
// nil if a change is already known.
func (s *Server) broadcastLast(sent State, changed <-chan struct{}) {
	if changed != nil {
		select {
		case <-changed:
		default:
			return
		}
	}
	now, _ := s.board.snapshot()
	s.broadcast(sent, now)
}

// broadcast sends all clients the difference between two states. A client whose queue is full is
// dropped; its page reconnects and gets the whole state.
func (s *Server) broadcast(sent, now State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 {
		return
	}
	text := message("change", difference(sent, now))
	for to := range s.streams {
		select {
		case to.messages <- text:
		default:
			delete(s.streams, to)
			close(to.messages)
		}
	}
}

// end closes all streams.
func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for to := range s.streams {
		delete(s.streams, to)
		close(to.messages)
	}
}

// members returns the JSON members of a state.
func members(s State) map[string]json.RawMessage {
	var all map[string]json.RawMessage
	body, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(body, &all)
	}
	if err != nil {
		panic(fmt.Sprintf("dashboard: %v in a state", err)) // a State always has a JSON form
	}
	return all
}

// difference returns the members of a state that differ from an older one. For the curve it returns
// only the new points.
func difference(old, now State) map[string]json.RawMessage {
	tail := now.Curve.since(old.Curve)
	same := len(tail.Points) == 0 && tail.From == len(old.Curve.Points)
	now.Curve, old.Curve = tail, Curve{}
	changes, before := members(now), members(old)
	maps.DeleteFunc(changes, func(name string, value json.RawMessage) bool {
		if name == "curve" {
			return same
		}
		return bytes.Equal(before[name], value)
	})
	return changes
}

// message is one server-sent event.
func message(name string, data map[string]json.RawMessage) []byte {
	body, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("dashboard: %v in a state", err)) // the members are JSON already
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, body)
}

// enter reserves a place for a client, if there is one. leave frees it.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching >= streamLimit || s.closed {
		return false
	}
	s.watching++
	return true
}

// join adds a client and returns its first message.
func (s *Server) join(ctx context.Context) (*stream, []byte, error) {
	newcomer := &stream{messages: make(chan []byte, streamBacklog)}
	limited, cancel := context.WithTimeout(ctx, streamWrite)
	defer cancel()
	select {
	case s.joined <- newcomer:
		return newcomer, <-newcomer.messages, nil
	case <-limited.Done():
		return nil, nil, limited.Err()
	}
}

// leave frees a client's place. gone is nil if it never got a stream.
func (s *Server) leave(gone *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching--
	delete(s.streams, gone)
}

func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	refuse := func(why string) {
		w.Header().Set("Retry-After", "10")
		http.Error(w, why, http.StatusServiceUnavailable)
	}
	if !s.enter() {
		refuse("too many clients are connected; try again later")
		return
	}
	from, text, err := s.join(r.Context())
	defer func() { s.leave(from) }()
	if err != nil {
		refuse(err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // tells proxies not to buffer
	out := http.NewResponseController(w)
	alive := time.NewTicker(streamIdle)
	defer alive.Stop()
	for {
		_ = out.SetWriteDeadline(time.Now().Add(streamWrite)) // does nothing if not supported
		if _, err := w.Write(text); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case next, open := <-from.messages:
			if !open {
				return
			}
			text = next
		case <-alive.C:
			text = []byte("event: alive\ndata: {}\n\n")
		}
	}
}
