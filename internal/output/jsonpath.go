package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// parseJSONPath parses a template of kubectl's JSONPath. A template without braces is a
// path. Both .[0] and [0] are the first item of a list.
func parseJSONPath(template string) (*jsonpath.JSONPath, error) {
	if template == "" {
		return nil, errors.New("jsonpath: want a template, such as jsonpath={.name}")
	}
	if !strings.Contains(template, "{") {
		template = "{." + strings.TrimPrefix(strings.TrimPrefix(template, "$"), ".") + "}"
	}
	template = strings.ReplaceAll(template, "{.[", "{[")
	p := jsonpath.New("output").AllowMissingKeys(true)
	if err := p.Parse(template); err != nil {
		return nil, fmt.Errorf("jsonpath %q: %w", template, err)
	}
	return p, nil
}

// Find returns the values at a path of kubectl's JSONPath in a JSON value.
func Find(path string, v any) ([]any, error) {
	p, err := parseJSONPath(path)
	if err != nil {
		return nil, err
	}
	lists, err := p.FindResults(v)
	if err != nil {
		return nil, fmt.Errorf("jsonpath %q: %w", path, err)
	}
	var out []any
	for _, list := range lists {
		for _, found := range list {
			out = append(out, found.Interface())
		}
	}
	return out, nil
}

// writeJSONPath writes the output of a template for a JSON value, with a line end. It
// escapes strings of the value (see Escape), but not the template.
func writeJSONPath(w io.Writer, template string, text []byte) error {
	p, err := parseJSONPath(template)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	var out bytes.Buffer
	if err := p.Execute(&out, plainValue(v)); err != nil {
		return fmt.Errorf("%s%s: %w", jsonPathPrefix, template, err)
	}
	if out.Len() > 0 && !bytes.HasSuffix(out.Bytes(), []byte("\n")) {
		out.WriteByte('\n')
	}
	_, err = w.Write(out.Bytes())
	return err
}

// plainValue returns a JSON value with escaped strings and with integers.
func plainValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[Escape(key)] = plainValue(item)
		}
		return out
	case []any:
		for i, item := range v {
			v[i] = plainValue(item)
		}
	case string:
		return Escape(v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	}
	return v
}
