package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// The image's commands are packages of ./cmd.
func commands() []string { return []string{"rondo", "worker", "coordinator"} }

// A static binary looks up names by Go's own code, because the C library's would load more of
// itself when it runs. The other tags are the Makefile's.
const (
	tags = "netgo,osusergo," +
		"grpcnotrace,disable_grpc_modules,kustomize_disable_go_plugin_support"
	ldflags = "-s -w"
	static  = " -linkmode external -extldflags -static" // with C kernels; pure Go is static anyhow
)

// buildArguments are those of `go build`.
func buildArguments(folder string, cgo bool) []string {
	link := ldflags
	if cgo {
		link += static
	}
	arguments := []string{"build", "-trimpath", "-buildvcs=false", "-tags", tags,
		"-ldflags", link, "-o", folder + "/"}
	for _, command := range commands() {
		arguments = append(arguments, "./cmd/"+command)
	}
	return arguments
}

// buildCommands builds the commands for this machine's processor, writes their papers, and returns
// their version. CGO_ENABLED=0 in the environment leaves the C kernels out.
func buildCommands(ctx context.Context, folder string) (version string, err error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("the image is built for Linux, and this is %s: use docker build -f "+
			"k8s/Dockerfile", runtime.GOOS)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("--binaries: %w", err)
	}
	cgo := os.Getenv("CGO_ENABLED") != "0"
	build := exec.CommandContext(ctx, "go", buildArguments(folder, cgo)...)
	// A build that works prints only the linker's warning of dlopen, which nothing calls.
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%sgo build: %w; if a static C library is missing, install it "+
			"(Debian: libc6-dev, Fedora: glibc-static) or set CGO_ENABLED=0", said, err)
	}
	if err := writePapers(ctx, folder); err != nil {
		return "", err
	}
	return versionOf(ctx, folder)
}

// versionOf asks every command, which also proves that they run.
func versionOf(ctx context.Context, folder string) (string, error) {
	version := ""
	for _, command := range commands() {
		file := filepath.Join(folder, command)
		output, err := exec.CommandContext(ctx, file, "--version").Output()
		if err != nil {
			return "", fmt.Errorf("%s --version: %w", file, err)
		}
		// "rondo version 1.2.3, protocol 4"
		_, said, _ := strings.Cut(strings.TrimSpace(string(output)), " version ")
		said, _, _ = strings.Cut(said, ",")
		if said == "" || version != "" && said != version {
			return "", fmt.Errorf("%s says %q; the others are version %q", command, output, version)
		}
		version = said
	}
	return version, nil
}

// certificatesIn is the given file, or where this system keeps the certificates that it trusts.
func certificatesIn(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	for _, file := range []string{
		"/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch
		"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora
		"/etc/ssl/ca-bundle.pem",             // openSUSE
	} {
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", errors.New("this system has no certificates: install ca-certificates, or give " +
		"--certificates")
}
