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
	streamLimit   = 64               // people who watch at a time
	streamBacklog = 16               // messages that wait for one; who is slower is dropped
	streamPause   = time.Second / 2  // between messages of changes
	streamWrite   = 10 * time.Second // for one message to be taken
	streamIdle    = 15 * time.Second // between signs of life
)

// Server serves a board: the page at /, its state at /api/state, and what changes of it as
// server-sent events at /api/events. Run feeds the stream.
type Server struct {
	board *Board
	page  page

	mu       sync.Mutex
	watching int // people, those included who are about to join
	streams  map[*stream]struct{}
	joined   chan *stream
	over     bool
}

// stream is one who watches.
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
	_, _ = w.Write(append(body, '\n')) // who has gone needs no answer
}

// Run tells everybody who watches what changes, until ctx ends; then it tells the last changes and
// ends all streams.
func (s *Server) Run(ctx context.Context) error {
	defer s.end()
	told, changed := s.board.look()
	var pause <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			s.tellLast(told, changed)
			return ctx.Err()
		case <-changed:
			pause, changed = time.After(streamPause), nil
		case <-pause:
			var now State
			now, changed = s.board.look()
			pause = nil
			s.tell(told, now)
			told = now
		case newcomer := <-s.joined:
			s.mu.Lock()
			s.streams[newcomer] = struct{}{}
			s.mu.Unlock()
			newcomer.messages <- message("state", members(told)) // its first: there is room
		}
	}
}

// tellLast tells what has changed since the last message, such as how the job has ended. changed is
// nil if a change is known.
func (s *Server) tellLast(told State, changed <-chan struct{}) {
	if changed != nil {
		select {
		case <-changed:
		default:
			return
		}
	}
	now, _ := s.board.look()
	s.tell(told, now)
}

// tell sends everybody what is not as they were told. Who has not taken what was sent before is
// dropped: a page comes back by itself, and is told everything anew.
func (s *Server) tell(told, now State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 {
		return
	}
	text := message("change", difference(told, now))
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
	s.over = true
	for to := range s.streams {
		delete(s.streams, to)
		close(to.messages)
	}
}

// members are a state's JSON members.
func members(s State) map[string]json.RawMessage {
	var all map[string]json.RawMessage
	body, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(body, &all)
	}
	if err != nil {
		panic(fmt.Sprintf("dashboard: %v in a state", err)) // all of it is ours
	}
	return all
}

// difference is those members of a state that differ from an older one. Of the curve it is what
// is new.
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
		panic(fmt.Sprintf("dashboard: %v in a state", err)) // it was JSON already
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, body)
}

// enter makes room for one more who watches; leave is due when one has gone.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching >= streamLimit || s.over {
		return false
	}
	s.watching++
	return true
}

// join adds one who watches, and returns the first message.
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

// leave takes one out who has gone, or who did not get as far as a stream.
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
		refuse("too many people watch already; try again later")
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
	w.Header().Set("X-Accel-Buffering", "no") // a proxy holds nothing back
	out := http.NewResponseController(w)
	alive := time.NewTicker(streamIdle)
	defer alive.Stop()
	for {
		_ = out.SetWriteDeadline(time.Now().Add(streamWrite)) // where there is none, none is due
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
