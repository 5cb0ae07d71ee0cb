package integration

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// serveText asks `rondo serve` for several texts at a time, then ends it by a signal. Each text
// must be the pangram's beginning.
func serveText(t *testing.T, dir, pangram string) {
	d := launch(t, nil, environment(t), filepath.Join(binaries, "rondo"), "serve", "--checkpoint",
		dir, "--listen", "127.0.0.1:0", "--lanes", "2", "--name", "fox")
	var url string
	await(t, "rondo serve says its address", func() bool {
		var found bool
		_, url, found = strings.Cut(d.stdout.String(), "serving fox at ")
		return found && strings.HasSuffix(url, "\n")
	})
	url = strings.TrimSpace(url)
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			got, err := http.Post(url, "application/json", strings.NewReader(
				`{"prompt": "the quick ", "max_tokens": 30, "temperature": 0, "echo": true}`))
			if err != nil {
				t.Error(err)
				return
			}
			defer got.Body.Close()
			var answer struct {
				Choices []struct{ Text string }
			}
			err = json.NewDecoder(got.Body).Decode(&answer)
			if err != nil || len(answer.Choices) != 1 ||
				!strings.HasPrefix(pangram, answer.Choices[0].Text) {
				t.Errorf("%s: %+v (%v)", got.Status, answer, err)
			}
		})
	}
	group.Wait()
	http.DefaultClient.CloseIdleConnections()
	d.signal(syscall.SIGTERM)
	if code := d.exitCode(); code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, d.stderr)
	}
}
