// Command app is what the images of the development cluster's registry contain. It answers every HTTP request with its
// version. The image's environment says how it behaves:
//
//	VERSION  what it answers
//	MODE     empty; crash: ends with exit code 7 at once; never-ready: /ready answers 503;
//	         deaf: ignores SIGTERM; pause: only waits, for the pod's sandbox
//	PORT     where it listens, 8080 unless a pod says otherwise
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	version, mode := os.Getenv("VERSION"), os.Getenv("MODE")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	switch mode {
	case "crash":
		fmt.Println("version", version, "crashes")
		os.Exit(7)
	case "pause":
		<-stop
		return
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
	}
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, version) })
	http.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if mode == "never-ready" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, version)
	})
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	failed := make(chan error, 1)
	go func() { failed <- http.ListenAndServe(":"+port, nil) }()
	fmt.Println("version", version, "serves on port", port)
	select {
	case <-stop:
	case err := <-failed:
		fmt.Println(err)
		os.Exit(1)
	}
}
