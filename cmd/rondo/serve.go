package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/serve"
)

func serveCommand() *cobra.Command {
	var location string
	var cfg serve.Config
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve a trained model's text over HTTP, by OpenAI's completions API",
		Long: "Answers POST /v1/completions, at once or as a stream, GET /v1/models and GET\n" +
			"/healthz until a signal. Texts that are asked for at the same time share the\n" +
			"model's steps. On loopback it is plain HTTP; for other machines give a\n" +
			"certificate, and a token or an authority of the clients' certificates.",
		Example: "  rondo serve --checkpoint runs/demo --listen 127.0.0.1:8000\n" +
			"  curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n" +
			"    -d '{\"prompt\": \"the time \", \"max_tokens\": 100, \"stream\": true}'",
	}
	flags := c.Flags()
	addCheckpointFlag(c, &location)
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:8000", "host:port; an empty host is all of "+
		"this machine's addresses")
	flags.StringVar(&cfg.Name, "name", "", "the model's name in requests; default: the name of "+
		"the checkpoints' folder")
	flags.IntVar(&cfg.Lanes, "lanes", 8, "texts that are continued side by side; others wait")
	flags.IntVar(&cfg.Tokens, "max-tokens", 4096, "limit of a text's length")
	flags.StringVar(&cfg.Cert, "tls-cert", "", "PEM file of the certificate, for HTTPS; it is "+
		"read again for each connection")
	flags.StringVar(&cfg.Key, "tls-key", "", "PEM file of the certificate's key")
	flags.StringVar(&cfg.ClientCA, "tls-client-ca", "", "PEM file of authorities: clients need a "+
		"certificate of one of them")
	flags.StringVar(&cfg.TokenFile, "token-file", "", "file with the token that clients send in "+
		"the header \"Authorization: Bearer TOKEN\"")
	flags.BoolVar(&cfg.Insecure, "insecure", false, "let anybody on other machines ask, "+
		"unencrypted")
	use := addUseFlags(flags)
	log := meet.AddLogFlags(flags)
	c.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if cfg.Log, err = log(cmd.ErrOrStderr(), slog.LevelInfo); err != nil {
			return err
		}
		if err := cfg.Validate(); err != nil {
			return app.Usage(err)
		}
		named := location // a copy of a claim's model has another name
		t, texts, err := openTexts(cmd, &location, *use, cfg.Lanes)
		if err != nil {
			return err
		}
		defer t.Close()
		defer texts.Close()
		if cfg.Name == "" {
			cfg.Name = filepath.Base(strings.TrimRight(cmp.Or(named, location), "/"))
		}
		cfg.Opened = func(url string) {
			fmt.Fprintf(cmd.OutOrStdout(), "serving %s at %s/v1/completions\n", cfg.Name, url)
		}
		return serve.Run(cmd.Context(), cfg, texts)
	}
	return c
}
