package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rondo/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a board served on a loopback port.
type served struct {
	*Server
	t     *testing.T
	board *Board
	url   string
	end   func()
}

func serve(t *testing.T) *served {
	t.Helper()
	board := NewBoard("demo", time.Now)
	s := &served{Server: NewServer(board), t: t, board: board}
	mux := http.NewServeMux()
	s.Register(mux)
	server := httptest.NewServer(mux)
	s.url = server.URL
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	s.end = func() {
		cancel()
		<-ended
	}
	t.Cleanup(func() {
		s.end()
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// reply is an answer. Its body is closed when the test ends.
type reply struct {
	status int
	header http.Header
	body   io.Reader
}

func (s *served) get(path string) reply {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	s.t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = answer.Body.Close() })
	return reply{answer.StatusCode, answer.Header, answer.Body}
}

func (s *served) text(path string) string {
	s.t.Helper()
	body, err := io.ReadAll(s.get(path).body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(body)
}

// event reads the next event of a stream. It returns false at the end.
func event(lines *bufio.Scanner) (name string, data map[string]json.RawMessage, ok bool) {
	for lines.Scan() {
		if text, is := strings.CutPrefix(lines.Text(), "event: "); is {
			name = text
		}
		if text, is := strings.CutPrefix(lines.Text(), "data: "); is {
			return name, data, json.Unmarshal([]byte(text), &data) == nil
		}
	}
	return "", nil, false
}

func linesOf(answer reply) *bufio.Scanner {
	lines := bufio.NewScanner(answer.body)
	lines.Buffer(nil, 16<<20)
	return lines
}

// TestPageIsWhole: the page needs only this server, and its policy enforces that.
func TestPageIsWhole(t *testing.T) {
	s := serve(t)
	answer := s.get("/")
	policy := answer.header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'sha256-",
		"style-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q has no %q", policy, want)
		}
	}
	page := s.text("/")
	foreign := regexp.MustCompile(`(src|href|url\()\s*=?\s*["']?(https?:)?//`)
	inline := regexp.MustCompile(`<[^>]* (style|on\w+)="`)
	markup := regexp.MustCompile(`innerHTML|outerHTML|document\.write|eval\(`)
	for what, pattern := range map[string]*regexp.Regexp{"a foreign resource": foreign,
		"markup from a text": markup, "what the policy forbids": inline} {
		if found := pattern.FindString(page); found != "" {
			t.Errorf("the page has %s: %s", what, found)
		}
	}
	for _, element := range []string{"script", "style"} {
		if n := strings.Count(page, "<"+element); n != 1 {
			t.Errorf("the page has %d of <%s>; the policy knows one", n, element)
		}
	}
	for path, want := range map[string]int{"/nothing": 404, "/api/nothing": 404,
		"/api/state": 200} {
		if got := s.get(path).status; got != want {
			t.Errorf("%s: status %d, want %d", path, got, want)
		}
	}
}

// TestScriptFitsPageAndState: the script uses only elements of the page and members of a state.
func TestScriptFitsPageAndState(t *testing.T) {
	ids := make(map[string]bool)
	for _, m := range regexp.MustCompile(`id="([\w-]+)"`).FindAllStringSubmatch(pageHTML, -1) {
		if ids[m[1]] {
			t.Errorf("two elements have the id %s", m[1])
		}
		ids[m[1]] = true
	}
	used := regexp.MustCompile(`(?:\$|unit|showList)\("([\w-]+)"`)
	for _, m := range used.FindAllStringSubmatch(pageHTML, -1) {
		if !ids[m[1]] {
			t.Errorf("the script uses the element %s, which is not there", m[1])
		}
	}
	names := func(of reflect.Type) (found []string) {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			found = append(found, name)
		}
		return found
	}
	_, script, _ := strings.Cut(pageHTML, "<script>")
	for pattern, has := range map[string][]string{
		`\bstate\.(\w+)`:  names(reflect.TypeFor[State]()),
		`\bp\.([a-z]\w+)`: append(names(reflect.TypeFor[Progress]()), "forEach"),
		`\bw\.([a-z]\w+)`: names(reflect.TypeFor[telemetry.Seat]()),
		`\bring\.(\w+)`:   append(names(reflect.TypeFor[Ring]()), "length"),
	} {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(script, -1) {
			if !slices.Contains(has, m[1]) {
				t.Errorf("the script uses %s, which no state has", m[0])
			}
		}
	}
}

// TestStreamTellsEverything: the first message is the whole state; with all later messages it
// equals the served state.
func TestStreamTellsEverything(t *testing.T) {
	s := serve(t)
	s.board.Begin(telemetry.Run{Number: 7})
	lines := linesOf(s.get("/api/events"))
	name, page, ok := event(lines)
	if !ok || name != "state" || string(page["job"]) != `"demo"` {
		t.Fatalf("the first event is %q of %d members", name, len(page))
	}
	for step := int64(1); step <= 3; step++ {
		s.board.Show(telemetry.Step{Step: step, TotalSteps: 3, Loss: 1, Tokens: 10,
			TokensPerSecond: 5})
		s.board.Show(telemetry.Checkpoint{Step: step, Path: fmt.Sprint("p", step)})
		name, changes, ok := event(lines)
		if !ok || name != "change" || changes["samples"] != nil {
			t.Fatalf("event %q with %d members", name, len(changes))
		}
		want := fmt.Sprintf(`{"from":%d,"stride":1,"points":[[%d,1,5]]}`, step-1, step)
		if string(changes["curve"]) != want {
			t.Errorf("step %d: the curve's change is %s, want %s", step, changes["curve"], want)
		}
		for member, value := range changes {
			page[member] = value
		}
	}
	var now map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s.text("/api/state")), &now); err != nil {
		t.Fatal(err)
	}
	for member, value := range now {
		if member != "curve" && string(page[member]) != string(value) {
			t.Errorf("the stream's %s is %s, the state's %s", member, page[member], value)
		}
	}
}

// TestStreamsAreBounded: the number of clients is limited, and a client that does not read is
// dropped without delaying the others.
func TestStreamsAreBounded(t *testing.T) {
	s := serve(t)
	for range streamLimit {
		if !s.enter() {
			t.Fatal("there is no room for as many as the limit says")
		}
	}
	if answer := s.get("/api/events"); answer.status != http.StatusServiceUnavailable ||
		answer.header.Get("Retry-After") == "" {
		t.Errorf("one too many: status %d", answer.status)
	}
	for range streamLimit {
		s.leave(nil)
	}
	slow, _, err := s.join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old := s.board.State()
	for i := 0; ; i++ {
		if i > streamBacklog {
			t.Fatal("who does not read is not dropped")
		}
		now := s.board.State()
		now.Generation = int64(i + 1)
		s.broadcast(old, now)
		s.mu.Lock()
		_, still := s.streams[slow]
		s.mu.Unlock()
		if !still {
			break
		}
	}
	for range slow.messages { // until it is closed
	}
}

// TestStreamsEnd: when the server ends, all streams end and no client can join.
func TestStreamsEnd(t *testing.T) {
	s := serve(t)
	lines := linesOf(s.get("/api/events"))
	if _, _, ok := event(lines); !ok {
		t.Fatal("the stream has no first event")
	}
	s.end()
	if name, _, ok := event(lines); ok {
		t.Errorf("after the end there is an event %q", name)
	}
	if answer := s.get("/api/events"); answer.status != http.StatusServiceUnavailable {
		t.Errorf("after the end: status %d", answer.status)
	}
}

// TestStreamsTellTheEnd: changes right before the server's end are sent.
func TestStreamsTellTheEnd(t *testing.T) {
	s := serve(t)
	lines := linesOf(s.get("/api/events"))
	if _, _, ok := event(lines); !ok {
		t.Fatal("the stream has no first event")
	}
	s.board.Show(telemetry.Done{Step: 7})
	s.end()
	name, changes, ok := event(lines)
	if !ok || name != "change" || string(changes["phase"]) != `"ended"` {
		t.Errorf("the last event is %q with phase %s", name, changes["phase"])
	}
}
