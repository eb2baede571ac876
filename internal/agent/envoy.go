package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/relay"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/process"
)

// stopTimeout is the time from SIGTERM to SIGKILL.
const stopTimeout = 5 * time.Second

// startEnvoy waits for the patches of the bootstrap, if there may be any, and runs Envoy.
func startEnvoy(ctx, serving context.Context, cfg *config.Config, opts Options, status *statusServer, patches *bootstrapPatches, call relay.Call) error {
	patched := *cfg
	if patches != nil {
		patch, ok, err := patches.wait(ctx, serving, status.control.quit, call)
		if !ok {
			status.terminate()
			return err
		}
		patched.Patch = patch
	}
	return runEnvoy(ctx, serving, &patched, opts, status)
}

// runEnvoy writes the bootstrap, unless the user has one, and runs Envoy until ctx or serving ends, or Envoy does.
func runEnvoy(ctx, serving context.Context, cfg *config.Config, opts Options, status *statusServer) (err error) {
	file := cfg.CustomConfigFile
	if file == "" {
		if file, err = writeBootstrap(cfg); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.Remove(file)) }()
	} else if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("customConfigFile: %w", err)
	}
	admin, err := status.admin.prepare()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, status.admin.removeSockets()) }()
	afterwards := context.WithoutCancel(ctx)
	status.guard.Starting()
	envoy, err := process.Start(afterwards, process.Command{
		Name: "envoy", Path: cfg.EnvoyPath, Args: append(envoyArgs(cfg, file), admin...), Env: opts.Environ,
		Stdout: opts.Stdout, Stderr: opts.Stderr,
	})
	if err != nil {
		return err
	}
	status.guard.Started(envoy.PID()) // which leads its process group
	opts.Log.Info("started envoy", "pid", envoy.PID(), "node", cfg.Node.String(), "bootstrap", file)
	select {
	case <-envoy.Done():
		if err := envoy.Err(); err != nil {
			return err
		}
		opts.Log.Info("envoy ended by itself")
		return nil
	case <-serving.Done():
		_, err := envoy.Stop(afterwards, stopTimeout)
		return errors.Join(errServing, err)
	case <-status.control.quit:
		status.terminate()
	case <-ctx.Done():
		status.terminate()
		drainEnvoy(afterwards, cfg, opts.Log, status.control, envoy.Done())
	}
	if _, err := envoy.Stop(afterwards, stopTimeout); err != nil {
		return err
	}
	opts.Log.Info("envoy has ended")
	return nil
}

// WriteBootstrap writes Envoy's bootstrap and nothing else.
func WriteBootstrap(cfg *config.Config) error {
	if err := checkDirectories(cfg); err != nil {
		return err
	}
	if cfg.CustomConfigFile != "" {
		return fmt.Errorf("customConfigFile: there is no bootstrap to write, Envoy starts with %s", cfg.CustomConfigFile)
	}
	_, err := writeBootstrap(cfg)
	return err
}

func writeBootstrap(cfg *config.Config) (file string, err error) {
	data, err := bootstrap.Marshal(cfg.Config)
	if err != nil {
		return "", err
	}
	file = filepath.Join(cfg.ConfigPath, "envoy-rev.json")
	return file, files.Write(file, data, files.Secret)
}

// envoyArgs returns the arguments that Istio's agent starts Envoy with.
func envoyArgs(cfg *config.Config, bootstrapFile string) []string {
	family := "v4"
	if cfg.Local.Is6() {
		family = "v6"
	}
	level, components := splitLogLevel(cfg.LogLevel)
	args := []string{
		"-c", bootstrapFile,
		"--drain-time-s", strconv.Itoa(int((cfg.Drain + time.Second - 1) / time.Second)),
		"--drain-strategy", "immediate",
		"--local-address-ip-version", family,
		"--file-flush-interval-msec", strconv.FormatInt(cfg.FileFlushInterval.Milliseconds(), 10),
		"--disable-hot-restart",
		"--allow-unknown-static-fields",
		"-l", level,
	}
	if components != "" {
		args = append(args, "--component-log-level", components)
	}
	if !cfg.DeprecatedLogs {
		args = append(args, "--skip-deprecated-logs")
	}
	if cfg.FileFlushMinKB > 0 {
		args = append(args, "--file-flush-min-size-kb", strconv.Itoa(int(cfg.FileFlushMinKB)))
	}
	if cfg.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(cfg.Concurrency))
	}
	return args
}

// splitLogLevel splits a level such as info,misc:error into the default level and the
// levels of components.
func splitLogLevel(s string) (level, components string) {
	level = config.DefaultLogLevel
	var rest []string
	for part := range strings.SplitSeq(s, ",") {
		if strings.Contains(part, ":") {
			rest = append(rest, part)
		} else if part != "" {
			level = part
		}
	}
	return level, strings.Join(rest, ",")
}
