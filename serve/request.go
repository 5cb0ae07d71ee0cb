package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"strings"

	"rondo/model"
)

// Limits of a request.
const (
	bodyLimit   = 1 << 20 // bytes
	promptLimit = 64 << 10
	textLimit   = 64 // prompts times n
	stopLimit   = 4
	stopSize    = 256 // bytes

	maxTemperature = 100
)

// request is the body of a request for completions: OpenAI's fields, and top_k. A field that is not
// here is refused, so that no client believes that it had an effect.
type request struct {
	Model         string  `json:"model"`
	Prompt        list    `json:"prompt"`
	MaxTokens     int     `json:"max_tokens"`
	Temperature   float64 `json:"temperature"`
	TopP          float64 `json:"top_p"`
	TopK          int     `json:"top_k"`
	N             int     `json:"n"`
	Seed          uint64  `json:"seed"`
	Stop          list    `json:"stop"`
	Echo          bool    `json:"echo"`
	Logprobs      *int    `json:"logprobs"`
	Stream        bool    `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	User string `json:"user"` // ignored

	// Clients send these; only the value that changes nothing is taken.
	BestOf           int                `json:"best_of"`
	FrequencyPenalty float64            `json:"frequency_penalty"`
	LogitBias        map[string]float64 `json:"logit_bias"`
	PresencePenalty  float64            `json:"presence_penalty"`
	Suffix           string             `json:"suffix"`
}

// list is a string or a list of strings.
type list []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *list) UnmarshalJSON(text []byte) error {
	var one *string
	if json.Unmarshal(text, &one) == nil {
		if *l = nil; one != nil {
			*l = list{*one}
		}
		return nil
	}
	if json.Unmarshal(text, (*[]string)(l)) != nil {
		return errors.New("prompt and stop are a string or a list of strings")
	}
	return nil
}

// read reads and checks a request.
func (a *api) read(w http.ResponseWriter, r *http.Request) (*request, *apiError) {
	// A web page cannot send this type to another site unasked.
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		return nil, invalid("send the request as Content-Type: application/json")
	}
	q := &request{MaxTokens: 16, Temperature: 1, TopP: 1, N: 1, BestOf: 1, Seed: rand.Uint64()}
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyLimit))
	body.DisallowUnknownFields()
	if err := body.Decode(q); err != nil {
		return nil, invalid("the request: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := body.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid("the request has more than one JSON object")
	}
	if q.Model != "" && q.Model != a.cfg.Name {
		return nil, a.notFound(q.Model)
	}
	if len(q.Prompt) == 0 {
		q.Prompt = list{""}
	}
	if refused := q.check(a.cfg.Tokens, a.maxTexts()); refused != "" {
		return nil, invalid("%s", refused)
	}
	return q, nil
}

// check returns the first problem, or "".
func (q *request) check(mostTokens, mostTexts int) string {
	for _, prompt := range q.Prompt {
		if len(prompt) > promptLimit {
			return fmt.Sprintf("a prompt has %d bytes, and %d are the most", len(prompt),
				promptLimit)
		}
	}
	for _, stop := range q.Stop {
		if stop == "" || len(stop) > stopSize {
			return fmt.Sprintf("a stop has %d bytes: give 1 to %d", len(stop), stopSize)
		}
	}
	switch texts := len(q.Prompt) * max(0, min(q.N, textLimit+1)); {
	case q.MaxTokens < 1 || q.MaxTokens > mostTokens:
		return fmt.Sprintf("max_tokens %d is not in [1, %d]", q.MaxTokens, mostTokens)
	case q.N < 1 || texts > mostTexts:
		return fmt.Sprintf("%d prompts with n %d: ask for 1 to %d texts", len(q.Prompt), q.N,
			mostTexts)
	case len(q.Stop) > stopLimit:
		return fmt.Sprintf("%d stops: give at most %d", len(q.Stop), stopLimit)
	case !(q.Temperature >= 0 && q.Temperature <= maxTemperature):
		return fmt.Sprintf("temperature %v is not in [0, %d]", q.Temperature, maxTemperature)
	case !(q.TopP >= 0 && q.TopP <= 1):
		return fmt.Sprintf("top_p %v is not in [0, 1]", q.TopP)
	case q.TopK < 0:
		return fmt.Sprintf("top_k %d is negative: 0 is no limit", q.TopK)
	case q.Logprobs != nil && *q.Logprobs != 0:
		return fmt.Sprintf("logprobs %d: only 0 is supported, the chosen tokens' own", *q.Logprobs)
	case q.BestOf != 1 || q.FrequencyPenalty != 0 || len(q.LogitBias) > 0 ||
		q.PresencePenalty != 0 || q.Suffix != "":
		return "best_of, frequency_penalty, logit_bias, presence_penalty and suffix are not " +
			"supported"
	}
	return ""
}

// sampling returns how a text is drawn.
func (q *request) sampling(index int) model.Sampling {
	return model.Sampling{Temperature: q.Temperature, Greedy: q.Temperature == 0, TopP: q.TopP,
		TopK: q.TopK, Seed: q.Seed + uint64(index)}
}

// stopper cuts a text at the first of some strings.
type stopper struct {
	stops []string
	held  string // may be the beginning of a stop
}

// next adds to the text. It returns the text that no stop can contain, and whether a stop
// has come.
func (s *stopper) next(text string) (safe string, stopped bool) {
	s.held += text
	end := len(s.held)
	for _, stop := range s.stops {
		if at := strings.Index(s.held, stop); at >= 0 && at < end {
			end, stopped = at, true
		}
	}
	if stopped {
		return s.held[:end], true
	}
	for _, stop := range s.stops {
		for n := min(len(stop)-1, len(s.held)); n > len(s.held)-end; n-- {
			if strings.HasSuffix(s.held, stop[:n]) {
				end = len(s.held) - n
			}
		}
	}
	safe, s.held = s.held[:end], s.held[end:]
	return safe, false
}
