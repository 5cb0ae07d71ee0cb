package dashboard

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

//go:embed page.html
var pageHTML string

// page is the HTML page and its content security policy. The policy allows its one script, its one
// style sheet and requests to this server.
type page struct {
	body   []byte
	policy string
}

func newPage() page {
	policy := fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; "+
		"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "+
		"frame-ancestors 'none'", hashOf("script"), hashOf("style"))
	return page{body: []byte(pageHTML), policy: policy}
}

// hashOf returns the hash of the text of the page's only element of that name, in the form of a
// policy.
func hashOf(element string) string {
	_, after, opened := strings.Cut(pageHTML, "<"+element+">")
	text, _, closed := strings.Cut(after, "</"+element+">")
	if !opened || !closed {
		panic("dashboard: the page has no <" + element + ">")
	}
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func (p page) serve(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(p.body)))
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(p.body) // a client that has gone needs no answer
}
