package serve

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
	"rondo/model"
	"rondo/task/lm"
)

// echoing is a model that writes "a0", "a1"... for seed 0, "b0"... for seed 1. If there are
// channels, each text says that it has entered, waits, and says why it left early.
type echoing struct {
	entered, wait chan struct{}
	left          chan error
}

func (e echoing) Read(prefix string) (lm.Continue, error) {
	if strings.Contains(prefix, "?") {
		return nil, app.Usagef("no token for %q", prefix)
	}
	return func(
		ctx context.Context, tokens int, how model.Sampling, each func(lm.Piece) error,
	) error {
		return e.write(ctx, prefix, tokens, how, each)
	}, nil
}

func (e echoing) write(
	ctx context.Context, prefix string, tokens int, how model.Sampling, each func(lm.Piece) error,
) error {
	if strings.Contains(prefix, "!") {
		return errors.New("the device failed")
	}
	if e.wait != nil {
		e.entered <- struct{}{}
		select {
		case <-e.wait:
		case <-ctx.Done():
			e.left <- ctx.Err()
			return ctx.Err()
		}
	}
	if err := each(lm.Piece{Text: prefix, Tokens: len(prefix)}); err != nil {
		return err
	}
	for i := range tokens {
		if i == 2 && strings.Contains(prefix, "#") {
			return errors.New("the device failed later")
		}
		text := fmt.Sprintf("%c%d", 'a'+rune(how.Seed), i)
		if err := each(lm.Piece{Text: text, Tokens: 1, LogProbability: -0.5}); err != nil {
			return err
		}
	}
	return nil
}

// start serves until the test ends, and returns the URL.
func start(t *testing.T, cfg Config, texts Texts) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	url, ended := startUntil(ctx, t, cfg, texts)
	t.Cleanup(func() {
		cancel()
		http.DefaultClient.CloseIdleConnections()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return url
}

// startUntil serves until ctx ends. ended has the result of Run.
func startUntil(ctx context.Context, t *testing.T, cfg Config, texts Texts) (
	url string, ended chan error) {
	t.Helper()
	cfg.Listen, cfg.Name, cfg.Tokens = "127.0.0.1:0", "song", 100
	if cfg.Lanes == 0 {
		cfg.Lanes = 2
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	opened := make(chan string, 1)
	cfg.Opened = func(url string) { opened <- url }
	ended = make(chan error, 1)
	go func() { ended <- Run(ctx, cfg, texts) }()
	select {
	case url = <-opened:
	case err := <-ended:
		t.Fatal(err)
	}
	return url, ended
}

// ask sends a request, and returns the status and the body; 0 after an error.
func ask(t *testing.T, url, body string, headers ...string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions",
		strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		t.Error(err)
	}
	return got.StatusCode, string(text)
}

// TestCompletions compares texts, ends and counts of tokens.
func TestCompletions(t *testing.T) {
	url := start(t, Config{}, echoing{})
	for body, want := range map[string]string{
		`{"prompt": "hi", "max_tokens": 3, "seed": 0}`: "a0a1a2 length; 2+3",
		`{"prompt": "hi", "max_tokens": 2, "seed": 0, "n": 2}`: "a0a1 length, " +
			"b0b1 length; 2+4",
		`{"prompt": ["x", "yy"], "max_tokens": 1, "seed": 0}`:        "a0 length, b0 length; 3+2",
		`{"prompt": "hi", "max_tokens": 1, "seed": 1, "echo": true}`: "hib0 length; 2+1",
		`{"max_tokens": 1, "seed": 0, "model": "song"}`:              "a0 length; 0+1",
		`{"prompt": "", "max_tokens": 9, "seed": 0, "stop": "1a2"}`:  "a0a stop; 0+3",
		`{"max_tokens": 9, "seed": 0, "stop": ["a3a5", "2a"]}`:       "a0a1a stop; 0+4",
		`{"max_tokens": 3, "seed": 0, "stop": ["a2a3"]}`:             "a0a1a2 length; 0+3",
		`{"seed": 0, "best_of": 1, "user": "me", "suffix": null}`: "a0a1a2a3a4a5a6a7a8a9a10a11a12" +
			"a13a14a15 length; 0+16",
	} {
		status, text := ask(t, url, body)
		var c completion
		if err := json.Unmarshal([]byte(text), &c); err != nil || status != http.StatusOK {
			t.Errorf("%s: %d %s (%v)", body, status, text, err)
			continue
		}
		var got []string
		for _, choice := range c.Choices {
			got = append(got, choice.Text+" "+*choice.FinishReason)
		}
		if got := fmt.Sprintf("%s; %d+%d", strings.Join(got, ", "), c.Usage.Prompt,
			c.Usage.Completion); got != want || c.Model != "song" ||
			c.Object != "text_completion" ||
			c.Usage.Total != c.Usage.Prompt+c.Usage.Completion {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
	_, text := ask(t, url, `{"seed": 0, "max_tokens": 2, "logprobs": 0}`)
	want := `{"tokens":["a0","a1"],"token_logprobs":[-0.5,-0.5]}`
	if !strings.Contains(text, want) {
		t.Errorf("%s has no %s", text, want)
	}
}

// TestStream puts the parts of two streamed texts together again.
func TestStream(t *testing.T) {
	url := start(t, Config{}, echoing{})
	_, body := ask(t, url, `{"max_tokens": 20, "seed": 0, "n": 2, "stop": "5b6", "stream": true,
		"stream_options": {"include_usage": true}}`)
	var texts, ends [2]string
	var used *usage
	done := false
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if done = string(data) == "[DONE]"; done {
			continue
		}
		var c completion
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatal(err)
		}
		used = c.Usage
		for _, part := range c.Choices {
			texts[part.Index] += part.Text
			if part.FinishReason != nil {
				ends[part.Index] = *part.FinishReason
			}
		}
	}
	want := "b0b1b2b3b4b"
	if !strings.HasSuffix(texts[0], "a18a19") || texts[1] != want || ends != [2]string{"length",
		"stop"} || !done || used == nil || used.Completion != 27 {
		t.Errorf("texts %q end by %q, usage %v, done %t", texts, ends, used, done)
	}
	_, body = ask(t, url, `{"prompt": "#", "stream": true}`)
	if !strings.Contains(body, `data: {"error":`) || !strings.Contains(body, "failed later") ||
		strings.Contains(body, "DONE") {
		t.Errorf("a stream that fails: %s", body)
	}
	for prompt, want := range map[string]int{"!": 500, "?": 400} {
		status, body := ask(t, url, fmt.Sprintf(`{"prompt": %q, "stream": true}`, prompt))
		if status != want || !strings.HasPrefix(body, `{"error":`) {
			t.Errorf("a stream that fails at once: %d %s", status, body)
		}
	}
}

// TestRefused sends wrong requests. Each gets a line that says what is wrong.
func TestRefused(t *testing.T) {
	url := start(t, Config{}, echoing{})
	for body, want := range map[string]string{
		``:                     `400 the request: EOF`,
		`{"prompt": 5}`:        `400 the request: prompt and stop are a string or a list`,
		`{"prompt": [[1, 2]]}`: `400 the request: prompt and stop are a string or a list`,
		`{"promt": "hi"}`:      `400 the request: unknown field \"promt\"`,
		`{} {}`:                `400 the request has more than one JSON object`,
		`{"model": "gpt-4"}`:   `404 there is no model \"gpt-4\" here, only \"song\"`,
		`{"max_tokens": 0}`:    `400 max_tokens 0 is not in [1, 100]`,
		`{"max_tokens": 101}`:  `400 max_tokens 101 is not in [1, 100]`,
		`{"n": 0}`:             `400 1 prompts with n 0: ask for 1 to 16 texts`,
		`{"n": 17}`:            `400 1 prompts with n 17: ask for 1 to 16 texts`,
		`{"n": 9223372036854775807, "prompt": ["a", "b"]}`: `400 2 prompts with n ` +
			`9223372036854775807`,
		`{"logprobs": 5}`:                 `400 logprobs 5: only 0 is supported`,
		`{"best_of": 2}`:                  `400 best_of, frequency_penalty`,
		`{"presence_penalty": 1}`:         `400 best_of, frequency_penalty`,
		`{"stop": ""}`:                    `400 a stop has 0 bytes: give 1 to 256`,
		`{"stop": ["a","b","c","d","e"]}`: `400 5 stops: give at most 4`,
		`{"temperature": -1}`:             `400 temperature -1 is not in [0, 100]`,
		`{"top_p": 2}`:                    `400 top_p 2 is not in [0, 1]`,
		`{"top_k": -1}`:                   `400 top_k -1 is negative: 0 is no limit`,
		`{"prompt": "why?"}`:              `400 no token for \"why?\"`,
		`{"prompt": "!"}`:                 `500 the device failed`,
		`{"prompt": "` + strings.Repeat("x", promptLimit+1) + `"}`: `400 a prompt has 65537 bytes`,
		`{"prompt": "` + strings.Repeat("x", bodyLimit) + `"}`: `400 the request: http: request ` +
			`body too large`,
	} {
		status, text := ask(t, url, body)
		if code, message, _ := strings.Cut(want, " "); fmt.Sprint(status) != code ||
			!strings.Contains(text, `"message":"`+message) {
			t.Errorf("%.60s: %d %s, want %s", body, status, text, want)
		}
	}
	if status, text := ask(t, url, `{}`, "Content-Type", "text/plain"); status != 400 {
		t.Errorf("plain text: %d %s", status, text)
	}
	for _, path := range []string{"/", "/v1/completions", "/v1/chat/completions", "/v1/models/x"} {
		got, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Error struct{ Message string } }
		err = json.NewDecoder(got.Body).Decode(&answer)
		_ = got.Body.Close()
		if err != nil || got.StatusCode != http.StatusNotFound ||
			!strings.HasPrefix(answer.Error.Message, "there is no ") {
			t.Errorf("GET %s: %s %+v (%v)", path, got.Status, answer, err)
		}
	}
}

// TestBusy: more texts than may wait are refused, and admitted again when others have gone.
func TestBusy(t *testing.T) {
	m := echoing{entered: make(chan struct{}), wait: make(chan struct{})}
	url := start(t, Config{Lanes: 1}, m)
	full := make(chan int, 1)
	go func() {
		status, _ := ask(t, url, fmt.Sprintf(`{"n": %d}`, waitFactor))
		full <- status
	}()
	for range waitFactor {
		select {
		case <-m.entered:
		case status := <-full:
			t.Fatalf("not all texts have begun: %d", status)
		}
	}
	if status, text := ask(t, url, `{}`); status != http.StatusTooManyRequests {
		t.Errorf("one text more: %d %s", status, text)
	}
	close(m.wait)
	if status := <-full; status != http.StatusOK {
		t.Error(status)
	}
	go func() { <-m.entered }()
	if status, text := ask(t, url, `{}`); status != http.StatusOK {
		t.Errorf("afterwards: %d %s", status, text)
	}
}

// TestGone: a text ends when its client goes.
func TestGone(t *testing.T) {
	m := echoing{entered: make(chan struct{}), wait: make(chan struct{}), left: make(chan error)}
	url := start(t, Config{}, m)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions",
		strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	ended := make(chan error, 1)
	go func() {
		got, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = got.Body.Close()
		}
		ended <- err
	}()
	<-m.entered
	cancel()
	if err := <-m.left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestEnd: a server that ends also ends its texts, and waits for them.
func TestEnd(t *testing.T) {
	m := echoing{entered: make(chan struct{}), wait: make(chan struct{}), left: make(chan error)}
	ctx, cancel := context.WithCancel(t.Context())
	url, ended := startUntil(ctx, t, Config{}, m)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		got, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader("{}"))
		if err == nil { // else the connection was closed first
			_ = got.Body.Close()
		}
	}()
	<-m.entered
	cancel()
	select {
	case err := <-m.left:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case err := <-ended:
		t.Fatalf("the server has ended before its text: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-asked
	http.DefaultClient.CloseIdleConnections()
}

// TestToken: without the token a client learns only that the server runs.
func TestToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("0123456789abcdef\n")
	url := start(t, Config{TokenFile: file}, echoing{})
	for header, want := range map[string]int{
		"Bearer 0123456789abcdef": 200, "Bearer 0123456789abcdeF": 401, "Bearer ": 401, "": 401,
		"0123456789abcdef": 401, "Basic 0123456789abcdef": 401,
	} {
		if status, text := ask(t, url, "{}", "Authorization", header); status != want {
			t.Errorf("%q: %d %s", header, status, text)
		}
	}
	for path, want := range map[string]int{healthPath: 200, "/v1/models": 401, "/": 401} {
		got, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if got.StatusCode != want {
			t.Errorf("%s: %s", path, got.Status)
		}
	}
	for _, text := range []string{"", "short", "two words of a secret", strings.Repeat("x", 5000)} {
		write(text)
		cfg := Config{Listen: "127.0.0.1:0", Tokens: 1, TokenFile: file}
		if err := Run(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(),
			"a token is one word") {
			t.Errorf("token %.20q: %v", text, err)
		}
	}
}

// TestTLS: with an authority of clients, only those with its certificate are answered.
func TestTLS(t *testing.T) {
	own, foreign := certstest.New(t), certstest.New(t)
	folder := own.Issue(t.TempDir(), time.Now().Add(time.Hour), "localhost")
	file := func(name string) string { return filepath.Join(folder, name) }
	url := start(t, Config{Cert: file(certs.CertFile), Key: file(certs.KeyFile),
		ClientCA: file(certs.TrustFile)}, echoing{})
	for name, a := range map[string]*certstest.Authority{"own": own, "foreign": foreign,
		"none": nil} {
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(own.PEM())
		config := &tls.Config{RootCAs: trusted}
		if a != nil {
			folder := a.Issue(t.TempDir(), time.Now().Add(time.Hour), "client")
			pair, err := tls.LoadX509KeyPair(filepath.Join(folder, certs.CertFile),
				filepath.Join(folder, certs.KeyFile))
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		got, err := client.Get(url + "/v1/models")
		if err == nil {
			_ = got.Body.Close()
		}
		client.CloseIdleConnections()
		if answered := err == nil && got.StatusCode == http.StatusOK; answered != (name == "own") {
			t.Errorf("certificate %s: answered %t, %v", name, answered, err)
		}
	}
}

// TestFlags: what is wrong with flags is said in a line.
func TestFlags(t *testing.T) {
	for want, cfg := range map[string]Config{
		`--listen "x" is not host:port`:                  {Listen: "x"},
		"--tls-cert and --tls-key go together":           {Cert: "a"},
		"--tls-client-ca needs --tls-cert and --tls-key": {ClientCA: "a"},
		"--listen :80 is open to other machines":         {Listen: ":80"},
		"--listen :81 is open to other machines":         {Listen: ":81", TokenFile: "a"},
		"--listen :82 is open to other machines":         {Listen: ":82", Cert: "a", Key: "b"},
		"--max-tokens 0 is not in":                       {Listen: ":83", Insecure: true},
		"--tls-cert a, --tls-key b: open a: no such file": {Cert: "a", Key: "b", ClientCA: "c",
			Tokens: 1},
	} {
		if cfg.Listen == "" {
			cfg.Listen = "127.0.0.1:0"
		}
		err := Run(t.Context(), cfg, nil)
		var usage *app.UsageError
		if err == nil || !strings.HasPrefix(err.Error(), want) || !errors.As(err, &usage) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
