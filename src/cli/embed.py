"""Writes the prompt sets as C, for prompts.c: embed.py OUT FILE.jsonl...; a set has its file's name."""
import pathlib
import sys

out, *files = map(pathlib.Path, sys.argv[1:])
text = '#include "cli/cli.h"\n'
for f in files:
    data = f.read_bytes()
    rows = (",".join(map(str, data[i:i + 24])) for i in range(0, len(data), 24))
    text += f"static const unsigned char {f.stem}_set[] = {{\n" + ",\n".join(rows) + "};\n"
text += f"_Static_assert(CLI_N_PROMPT_SETS == {len(files)}, \"cli.h counts the sets\");\n"
text += "const cli_prompt_set cli_prompt_sets[CLI_N_PROMPT_SETS] = {\n"
text += "".join(f'    {{"{f.stem}", {f.stem}_set, sizeof {f.stem}_set}},\n' for f in files) + "};\n"
out.write_text(text)
