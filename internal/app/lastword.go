package app

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// LastWordVariable names the file for a process's termination message: why it failed, or what it
// did. Kubernetes shows it with the container.
const LastWordVariable = "RONDO_TERMINATION_LOG"

// lastWordBytes is the length of a termination message that Kubernetes keeps, without the line
// feed.
const lastWordBytes = 4095

// summary is the annotation of a command with its termination message.
const summary = "rondo.dev/summary"

// Summarize sets the termination message of a command that succeeded.
func Summarize(c *cobra.Command, text string) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[summary] = text
}

// lastWord writes the termination message to the file that the variable names. In a pod the file
// exists, in a folder where no file can be created or renamed.
func lastWord(stderr io.Writer, text string) {
	path := os.Getenv(LastWordVariable)
	if path == "" {
		return
	}
	text = strings.ToValidUTF8(text[:min(len(text), lastWordBytes)], "")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = file.WriteString(text + "\n")
		if closing := file.Close(); err == nil {
			err = closing
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", LastWordVariable, err)
	}
}

// peakMemory describes the process's peak memory. It is empty where that is not known.
func peakMemory() string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ""
	}
	lines := bufio.NewScanner(bytes.NewReader(status))
	for lines.Scan() {
		words := strings.Fields(lines.Text()) // VmHWM: 1234 kB
		if len(words) < 2 || words[0] != "VmHWM:" {
			continue
		}
		if kib, err := strconv.Atoi(words[1]); err == nil {
			return fmt.Sprintf("; peak memory %d MiB", (kib+1023)/1024)
		}
	}
	return ""
}
