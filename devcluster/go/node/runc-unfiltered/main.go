// Command runc-unfiltered runs the runc in PATH without a seccomp filter. Kubelet asks for a filter for the sandbox of
// every pod, and filters need a C library that not every machine has the headers of, so our runc is built without.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

func main() {
	runc, err := exec.LookPath("runc")
	if err == nil {
		for i, arg := range os.Args {
			if arg == "--bundle" && i+1 < len(os.Args) {
				err = unfilter(filepath.Join(os.Args[i+1], "config.json"))
			}
		}
	}
	if err == nil {
		err = syscall.Exec(runc, append([]string{"runc"}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "runc-unfiltered:", err)
	os.Exit(1)
}

// unfilter removes the seccomp filter from a container's configuration; numbers and fields it does not know stay as they are.
func unfilter(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config, linux map[string]json.RawMessage
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	if err := json.Unmarshal(config["linux"], &linux); err != nil {
		return err
	}
	if _, filtered := linux["seccomp"]; !filtered {
		return nil
	}
	delete(linux, "seccomp")
	if config["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if text, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
