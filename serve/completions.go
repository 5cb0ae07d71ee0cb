package serve

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"rondo/internal/app"
	"rondo/internal/web"
	"rondo/task/lm"
)

// Limits of the work.
const (
	timeLimit  = 10 * time.Minute // of a request
	waitFactor = 8                // texts for each lane, most of which wait
	retryAfter = 1                // seconds
)

const healthPath = "/healthz"

// api is the completions API.
type api struct {
	*http.ServeMux
	cfg   Config
	texts Texts
	began int64 // Unix time

	mu      sync.Mutex
	open    int            // texts in progress or waiting
	closed  bool           // no text may begin
	running sync.WaitGroup // requests for texts; Add is called with mu, while closed is false
}

// newAPI makes the API of a server that ends with ctx, and all texts with it.
func newAPI(ctx context.Context, cfg Config, texts Texts) *api {
	a := &api{ServeMux: http.NewServeMux(), cfg: cfg, texts: texts, began: time.Now().Unix()}
	a.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	a.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"object": "list", "data": []any{a.model()}})
	})
	a.HandleFunc("GET /v1/models/{name}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("name") != cfg.Name {
			refuse(w, a.notFound(r.PathValue("name")))
			return
		}
		answer(w, http.StatusOK, a.model())
	})
	a.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, &apiError{http.StatusNotFound, "not_found", fmt.Sprintf("there is no %s %s "+
			"here, only POST /v1/completions and GET /v1/models", r.Method, r.URL.Path)})
	})
	a.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		a.completions(ctx, w, r)
	})
	return a
}

func (a *api) notFound(model string) *apiError {
	return &apiError{http.StatusNotFound, "model_not_found",
		fmt.Sprintf("there is no model %q here, only %q", model, a.cfg.Name)}
}

func (a *api) model() map[string]any {
	return map[string]any{"id": a.cfg.Name, "object": "model", "created": a.began,
		"owned_by": "rondo"}
}

// completion is an answer, or a message of a stream.
type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

// choice is a text, or a part of it.
type choice struct {
	Text         string    `json:"text"`
	Index        int       `json:"index"`
	Logprobs     *logprobs `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"` // null: the text goes on
}

// logprobs are the chosen tokens and their natural logarithms of probability.
type logprobs struct {
	Tokens        []string  `json:"tokens"`
	TokenLogprobs []float64 `json:"token_logprobs"`
}

// usage counts tokens.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// completions answers a request. The end of the server ends its texts.
func (a *api) completions(server context.Context, w http.ResponseWriter, r *http.Request) {
	q, refused := a.read(w, r)
	if refused != nil {
		refuse(w, refused)
		return
	}
	n := len(q.Prompt) * q.N
	if !a.admit(n) {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		refuse(w, &apiError{http.StatusTooManyRequests, "rate_limit_exceeded",
			"the server is busy: ask again later"})
		return
	}
	defer a.leave(n)
	ctx, cancel := context.WithTimeout(r.Context(), timeLimit)
	defer cancel()
	defer context.AfterFunc(server, cancel)()
	writes, err := a.prompts(q)
	if err != nil {
		refuse(w, a.failure(ctx, err))
		return
	}
	whole := completion{ID: "cmpl-" + rand.Text(), Object: "text_completion",
		Created: time.Now().Unix(), Model: a.cfg.Name}
	if q.Stream {
		a.stream(ctx, w, q, writes, whole)
		return
	}
	whole.Choices = make([]choice, n)
	used, err := a.generate(ctx, q, writes, func(part choice) error {
		c := &whole.Choices[part.Index] // of one goroutine each
		c.add(part)
		return nil
	})
	if err != nil {
		refuse(w, a.failure(ctx, err))
		return
	}
	whole.Usage = &used
	answer(w, http.StatusOK, whole)
}

// maxTexts is the most texts of a request.
func (a *api) maxTexts() int { return min(textLimit, a.cfg.Lanes*waitFactor) }

// admit reports whether n more texts have room, and if so counts them.
func (a *api) admit(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.open+n > a.cfg.Lanes*waitFactor {
		return false
	}
	a.open += n
	a.running.Add(1)
	return true
}

func (a *api) leave(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open -= n
	a.running.Done()
}

// close waits until all texts have ended. None begins any more.
func (a *api) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.running.Wait()
}

// prompts reads all prompts. Each of the results writes texts after one.
func (a *api) prompts(q *request) ([]lm.Continue, error) {
	var writes []lm.Continue
	for _, prompt := range q.Prompt {
		write, err := a.texts.Read(prompt)
		if err != nil {
			return nil, err
		}
		writes = append(writes, write)
	}
	return writes, nil
}

// stream answers with server-sent events. An error before the first is an answer of its own.
func (a *api) stream(ctx context.Context, w http.ResponseWriter, q *request,
	writes []lm.Continue, message completion) {
	control := http.NewResponseController(w)
	var mu sync.Mutex
	begun := false
	send := func(v any) error {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if !begun {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Cache-Control", "no-store")
		}
		begun = true
		if err := control.SetWriteDeadline(time.Now().Add(web.WriteTimeout)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
			return err
		}
		return control.Flush()
	}
	used, err := a.generate(ctx, q, writes, func(part choice) error {
		of := message
		of.Choices = []choice{part}
		return send(of)
	})
	switch {
	case err != nil && !begun:
		refuse(w, a.failure(ctx, err))
		return
	case err != nil:
		_ = send(a.failure(ctx, err)) // the client may be gone
		return
	case q.StreamOptions.IncludeUsage:
		message.Choices, message.Usage = []choice{}, &used
		_ = send(message)
	}
	_, _ = w.Write([]byte("data: [DONE]\n\n"))
}

// generate writes all texts side by side, and passes each part of one with its index. Parts of
// different texts are passed concurrently.
func (a *api) generate(
	ctx context.Context, q *request, writes []lm.Continue, each func(choice) error,
) (used usage, err error) {
	group, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	for i := range len(q.Prompt) * q.N {
		group.Go(func() error {
			t := &text{request: q, index: i, stopper: stopper{stops: q.Stop}, each: each}
			err := t.write(ctx, writes[i/q.N])
			mu.Lock()
			defer mu.Unlock()
			if i%q.N == 0 {
				used.Prompt += t.prompt
			}
			used.Completion += t.tokens
			return err
		})
	}
	err = group.Wait()
	used.Total = used.Prompt + used.Completion
	return used, err
}

// text is a text that is written.
type text struct {
	*request
	stopper
	index          int
	each           func(choice) error
	begun          bool
	prompt, tokens int // tokens read and written
	waiting        choice
}

// errStopped ends a text at a stop.
var errStopped = errors.New("a stop has come")

// write writes the text.
func (t *text) write(ctx context.Context, write lm.Continue) error {
	err := write(ctx, t.MaxTokens, t.sampling(t.index), t.piece)
	end := "length"
	switch {
	case errors.Is(err, errStopped):
		end = "stop"
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err() // a deadline shortens the text
	default:
		t.waiting.Text += t.held
	}
	t.waiting.Index, t.waiting.FinishReason = t.index, &end
	return t.each(t.waiting)
}

// piece takes a part of the text from the model.
func (t *text) piece(p lm.Piece) error {
	if !t.begun {
		t.begun, t.prompt = true, p.Tokens
		if t.Echo {
			t.waiting.Text = p.Text
		}
		return nil
	}
	t.tokens += p.Tokens
	if t.Logprobs != nil && p.Tokens > 0 {
		t.waiting.add(choice{Logprobs: &logprobs{[]string{p.Text}, []float64{p.LogProbability}}})
	}
	safe, stopped := t.next(p.Text)
	t.waiting.Text += safe
	if stopped {
		return errStopped
	}
	if t.waiting.Text == "" {
		return nil
	}
	now := t.waiting
	t.waiting, now.Index = choice{}, t.index
	return t.each(now)
}

// add adds a part at the end.
func (c *choice) add(part choice) {
	c.Text += part.Text
	c.Index, c.FinishReason = part.Index, part.FinishReason
	if part.Logprobs == nil {
		return
	}
	if c.Logprobs == nil {
		c.Logprobs = &logprobs{}
	}
	c.Logprobs.Tokens = append(c.Logprobs.Tokens, part.Logprobs.Tokens...)
	c.Logprobs.TokenLogprobs = append(c.Logprobs.TokenLogprobs, part.Logprobs.TokenLogprobs...)
}

// apiError is an answer that says what is wrong, in OpenAI's form.
type apiError struct {
	status  int
	code    string
	message string
}

func invalid(format string, a ...any) *apiError {
	return &apiError{http.StatusBadRequest, "invalid_request_error", fmt.Sprintf(format, a...)}
}

// MarshalJSON implements json.Marshaler.
func (e *apiError) MarshalJSON() ([]byte, error) {
	kind := "invalid_request_error"
	if e.status >= http.StatusInternalServerError {
		kind = "server_error"
	}
	return json.Marshal(map[string]any{"error": map[string]any{"message": e.message, "type": kind,
		"code": e.code, "param": nil}})
}

// failure is the answer to a request that failed.
func (a *api) failure(ctx context.Context, err error) *apiError {
	var usage *app.UsageError
	switch {
	case errors.As(err, &usage):
		return invalid("%s", usage.Error())
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &apiError{http.StatusServiceUnavailable, "timeout",
			fmt.Sprintf("the text took more than %v: ask for fewer tokens", timeLimit)}
	case ctx.Err() != nil: // the client is gone
		return &apiError{http.StatusServiceUnavailable, "cancelled", "the request was cancelled"}
	}
	a.cfg.Log.Error("a request failed", "error", err)
	return &apiError{http.StatusInternalServerError, "server_error", err.Error()}
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, e *apiError) { answer(w, e.status, e) }

// answer answers with JSON.
func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "the answer cannot be written: "+err.Error(), http.StatusInternalServerError)
		return
	}
	// The time to write begins now, not with the request.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(web.WriteTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that has gone needs no answer
}
