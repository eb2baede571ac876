package proxyconfig

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/meshctl/meshctl/internal/output"
)

// logLevels returns Envoy's log levels, the most verbose first.
func logLevels() []string {
	return []string{"trace", "debug", "info", "warning", "error", "critical", "off"}
}

// LogLevels are levels of Envoy's loggers.
type LogLevels struct {
	All string            // of those that Of does not name; empty leaves them as they are
	Of  map[string]string // by logger
}

// ParseLogLevels parses a list of level, logger:level and logger=level, separated by
// commas and blanks. It ignores a prefix of a logger that ends with ::.
func ParseLogLevels(text string) (LogLevels, error) {
	out := LogLevels{Of: map[string]string{}}
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if at := strings.LastIndex(item, "::"); at >= 0 {
			item = item[at+2:]
		}
		logger, written := "", item
		if at := strings.IndexAny(item, ":="); at >= 0 {
			logger, written = item[:at], item[at+1:]
			if logger == "" {
				return LogLevels{}, fmt.Errorf("%q names no logger: want logger:level", item)
			}
		}
		level, err := logLevel(written)
		if err != nil {
			return LogLevels{}, err
		}
		switch was := out.Of[logger]; {
		case was != "":
			return LogLevels{}, fmt.Errorf("two levels for logger %s, %s and %s", logger, was, level)
		case logger != "":
			out.Of[logger] = level
		case out.All != "":
			return LogLevels{}, fmt.Errorf("two levels for all loggers, %s and %s", out.All, level)
		default:
			out.All = level
		}
	}
	return out, nil
}

// logLevel returns Envoy's name of a level.
func logLevel(written string) (string, error) {
	if written == "warn" {
		return "warning", nil
	}
	if !slices.Contains(logLevels(), written) {
		return "", fmt.Errorf("unrecognized logging level: %.60q is none of %s%s",
			written, strings.Join(logLevels(), ", "), output.DidYouMean(written, logLevels()))
	}
	return written, nil
}

// Check reports loggers that are not among the active loggers of an Envoy.
func (l LogLevels) Check(active map[string]string) error {
	for _, logger := range slices.Sorted(maps.Keys(l.Of)) {
		if _, ok := active[logger]; !ok {
			if logger == "all" || logger == "default" {
				return fmt.Errorf("there is no logger %s: a level without a logger is for all of them, as in --level %s", logger, l.Of[logger])
			}
			return fmt.Errorf("unrecognized logger name: %.60q%s", logger, output.DidYouMean(logger, slices.Sorted(maps.Keys(active))))
		}
	}
	return nil
}

// ReadLoggers reads the levels of all loggers from Envoy's /logging.
func ReadLoggers(r io.Reader) (map[string]string, error) {
	out := map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		logger, level, ok := strings.Cut(strings.TrimSpace(lines.Text()), ": ")
		if ok && slices.Contains(logLevels(), level) {
			out[logger] = level
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("the answer lists no loggers: is that the port of Envoy's admin interface?")
	}
	return out, nil
}

// CheckServerInfo checks that a response to /server_info has a version, as every Envoy's
// has. It holds the whole response.
func CheckServerInfo(r io.Reader) error {
	info, err := readServerInfo(r)
	if err == nil && info.GetVersion() == "" {
		return errors.New("the answer is no server info of Envoy: it names no version")
	}
	return err
}

func readServerInfo(r io.Reader) (*adminv3.ServerInfo, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	info := new(adminv3.ServerInfo)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, info); err != nil {
		return nil, fmt.Errorf("the answer is no server info of Envoy: %w", err)
	}
	return info, nil
}

// ReadStartLevels reads the log levels that an Envoy was started with from /server_info.
// It holds the whole response.
func ReadStartLevels(r io.Reader) (LogLevels, error) {
	info, err := readServerInfo(r)
	if err != nil {
		return LogLevels{}, err
	}
	options := info.GetCommandLineOptions()
	levels := options.GetLogLevel()
	if components := options.GetComponentLogLevel(); components != "" {
		levels += "," + components
	}
	out, err := ParseLogLevels(levels)
	if err != nil {
		return LogLevels{}, fmt.Errorf("levels that Envoy was started with: %w", err)
	}
	return out, nil
}
