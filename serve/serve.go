// Package serve answers HTTP requests for text with a language model, by the completions API that
// OpenAI's clients speak. Concurrent requests share the model's steps. The package trains nothing
// and knows neither checkpoints nor devices. It may import task/lm and model for a text's sampling.
package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"

	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/internal/web"
	"rondo/task/lm"
)

// Limits of the flags.
const (
	maxTokens  = 1 << 20
	shortToken = 16 // characters; a shorter secret is refused
	tokenSize  = 4 << 10
)

// Config configures a server.
type Config struct {
	Listen string // host:port
	Name   string // of the model, in requests and answers
	Lanes  int    // texts that the model continues at a time
	Tokens int    // limit of a text's length

	Cert, Key string // PEM files for HTTPS; empty: HTTP
	ClientCA  string // PEM file: clients need a certificate of one of its authorities; empty: none
	TokenFile string // file with the secret that clients send as a bearer token; empty: none
	Insecure  bool   // serve other machines without HTTPS, or anybody there

	Log *slog.Logger
	// Opened is called with the URL; nil: not called.
	Opened func(url string)
}

// Texts continues texts; *job.Texts implements it.
type Texts interface {
	// Read reads the prefix of texts. What it returns may be called concurrently.
	Read(prefix string) (lm.Continue, error)
}

// Validate returns nil, or an error of one line that names the wrong flag.
func (c Config) Validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("--listen %q is not host:port: %w", c.Listen, err)
	}
	secure, known := c.Cert != "", c.ClientCA != "" || c.TokenFile != ""
	switch {
	case secure != (c.Key != ""):
		return errors.New("--tls-cert and --tls-key go together: give both")
	case c.ClientCA != "" && !secure:
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key: give them too")
	case certs.Exposed(c.Listen) && !(secure && known) && !c.Insecure:
		return fmt.Errorf("--listen %s is open to other machines: give --tls-cert and --tls-key, "+
			"and --token-file or --tls-client-ca, or --insecure to let anybody there ask",
			c.Listen)
	case c.Tokens < 1 || c.Tokens > maxTokens:
		return fmt.Errorf("--max-tokens %d is not in [1, %d]", c.Tokens, maxTokens)
	}
	return nil
}

// Run serves until ctx ends. It returns when all texts have ended too: the model may be freed. It
// returns an error if it cannot listen.
func Run(ctx context.Context, cfg Config, texts Texts) error {
	if err := cfg.Validate(); err != nil {
		return app.Usage(err)
	}
	secure, err := cfg.tls()
	if err != nil {
		return app.Usage(err)
	}
	requests := newAPI(ctx, cfg, texts)
	defer requests.close()
	handler, err := cfg.protect(requests)
	if err != nil {
		return app.Usage(err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if cfg.Opened != nil {
		scheme := "http://"
		if secure != nil {
			scheme = "https://"
		}
		cfg.Opened(scheme + listener.Addr().String())
	}
	err = web.Serve(ctx, listener, secure, handler, cfg.Log)
	if !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// tls returns the server's configuration, or nil. It reads the certificate for each connection, so
// that it can be renewed without a restart.
func (c Config) tls() (*tls.Config, error) {
	if c.Cert == "" {
		return nil, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert %s, --tls-key %s: %w", c.Cert, c.Key, err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() }}
	if c.ClientCA == "" {
		return secure, nil
	}
	trusted, err := os.ReadFile(c.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("--tls-client-ca: %w", err)
	}
	secure.ClientAuth, secure.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !secure.ClientCAs.AppendCertsFromPEM(trusted) {
		return nil, fmt.Errorf("--tls-client-ca %s has no certificate in PEM form", c.ClientCA)
	}
	return secure, nil
}

// protect lets through requests with the token. Anybody may ask /healthz.
func (c Config) protect(next http.Handler) (http.Handler, error) {
	if c.TokenFile == "" {
		return next, nil
	}
	file, err := os.Open(c.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	defer file.Close()
	content := make([]byte, tokenSize)
	n, _ := file.Read(content)
	secret := strings.TrimSpace(string(content[:n]))
	if n == tokenSize || len(secret) < shortToken || strings.ContainsAny(secret, " \t\r\n") {
		return nil, fmt.Errorf("--token-file %s: a token is one word of %d to %d characters",
			c.TokenFile, shortToken, tokenSize)
	}
	want := sha256.Sum256([]byte(secret)) // digests have one length, as the comparison needs
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		digest := sha256.Sum256([]byte(given))
		known := bearer && subtle.ConstantTimeCompare(digest[:], want[:]) == 1
		if known || r.URL.Path == healthPath {
			next.ServeHTTP(w, r)
			return
		}
		refuse(w, &apiError{http.StatusUnauthorized, "invalid_api_key",
			"give the server's token in the header \"Authorization: Bearer TOKEN\""})
	}), nil
}
