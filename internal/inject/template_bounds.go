package inject

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"text/template"
	"text/template/parse"
)

// Bounds of all custom templates of a pod together. Text of the pod must not make templates run
// long or large.
const (
	maxTemplateOutput = 1 << 20 // bytes
	// maxTemplateWork bounds the sum of: bytes that functions return, values that they read, and
	// stepWork for each write and each pass of a loop.
	maxTemplateWork = 4 << 20
	stepWork        = 100
)

// templateBudget is what the templates of a pod may still do.
type templateBudget struct{ output, work int }

func newTemplateBudget() templateBudget { return templateBudget{maxTemplateOutput, maxTemplateWork} }

// execution is one execution of a template.
type execution struct {
	*templateBudget
	ctx context.Context
	out strings.Builder
}

// execute returns the result of a template.
func (p *injection) execute(ctx context.Context, parsed *template.Template) (string, error) {
	data, err := p.templateData()
	if err != nil {
		return "", err
	}
	t, err := parsed.Clone()
	if err != nil {
		return "", err
	}
	e := &execution{templateBudget: &p.templateBudget, ctx: ctx}
	bounded := make(template.FuncMap, len(templateFunctions))
	for name, function := range templateFunctions {
		bounded[name] = e.bound(name, function)
	}
	err = t.Funcs(bounded).Execute(e, data)
	return e.out.String(), err
}

var (
	errTemplateWork   = errors.New("the templates work too long for this pod")
	errTemplateOutput = fmt.Errorf("the templates write more than %d bytes for this pod", maxTemplateOutput)
)

func (e *execution) spend(work int) error {
	if e.work -= work; work < 0 || e.work < 0 {
		return errTemplateWork
	}
	return e.ctx.Err()
}

// Write implements io.Writer.
func (e *execution) Write(text []byte) (int, error) {
	if e.output -= len(text); e.output < 0 {
		return 0, errTemplateOutput
	}
	if err := e.spend(stepWork); err != nil {
		return 0, err
	}
	return e.out.Write(text)
}

// bound returns a function that ends the template instead of doing too much.
func (e *execution) bound(name string, function any) any {
	f := reflect.ValueOf(function)
	pay := func(values []reflect.Value, perByte int) {
		for _, v := range values {
			if err := e.spend(sizeOf(v, perByte, e.work, 0)); err != nil {
				panic(err) // package template returns it
			}
		}
	}
	return reflect.MakeFunc(f.Type(), func(args []reflect.Value) []reflect.Value {
		pay(args, 0)
		if estimate := resultSizes[name]; estimate != nil {
			if err := e.spend(estimate(args)); err != nil {
				panic(err)
			}
		}
		call := f.Call
		if f.Type().IsVariadic() {
			call = f.CallSlice
		}
		out := call(args)
		pay(out[:1], 1)
		return out
	}).Interface()
}

// sizeOf returns the number of values in a value, and the bytes of texts times perByte. It returns
// more than most if there are more, or if the values nest too deep.
func sizeOf(v reflect.Value, perByte, most, depth int) int {
	size := 1
	add := func(part reflect.Value) bool {
		size += sizeOf(part, perByte, most-size, depth+1)
		return size <= most
	}
	if depth > 2*maxDepth { // an interface is a level, too
		return most + 1
	}
	switch v.Kind() {
	case reflect.String:
		size += perByte * v.Len()
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if !add(v.Index(i)) {
				break
			}
		}
	case reflect.Map:
		for name, value := range v.Seq2() {
			if !add(name) || !add(value) {
				break
			}
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			add(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && !add(v.Field(i)) {
				break
			}
		}
	}
	return size
}

// countSteps inserts an empty text into the bodies of loops and templates, so that each pass is a
// write, which execution counts. It reports whether the template consists only of text.
func countSteps(root *parse.ListNode) (constant bool) {
	step := func(body *parse.ListNode) {
		body.Nodes = append([]parse.Node{&parse.TextNode{NodeType: parse.NodeText}}, body.Nodes...)
	}
	constant = true
	var walk func(*parse.ListNode)
	walk = func(list *parse.ListNode) {
		if list == nil {
			return
		}
		for _, node := range list.Nodes {
			constant = constant && node.Type() == parse.NodeText
			switch n := node.(type) {
			case *parse.IfNode:
				walk(n.List)
				walk(n.ElseList)
			case *parse.WithNode:
				walk(n.List)
				walk(n.ElseList)
			case *parse.RangeNode:
				step(n.List)
				walk(n.List)
				walk(n.ElseList)
			}
		}
	}
	walk(root)
	step(root)
	return constant
}
