"""The style sheet of the report.

Series colours are Okabe and Ito's set, darkened for light ground and lightened for dark ground.
"""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root{--ground:#fff;--panel:#f6f7f9;--ink:#1b2129;--muted:#5c6672;--rule:#e1e5ea;--axis:#9aa4af;
--s0:#0072b2;--s1:#d55e00;--s2:#008a65;--s3:#a8508c;--s4:#b07d00;--s5:#4f9fd0;--s6:#7b4b2b;
--s7:#5b6570}
@media(prefers-color-scheme:dark){:root{--ground:#12161b;--panel:#1a2027;--ink:#e8ecf0;
--muted:#9ba6b2;--rule:#2a323b;--axis:#66717d;--s0:#4ea3e0;--s1:#f58b4c;--s2:#2fc39a;--s3:#dd92c8;
--s4:#e6bb45;--s5:#9ad4f5;--s6:#c79b78;--s7:#a9b3be}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);-webkit-text-size-adjust:100%;
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:40px 24px 56px}
h1{font-size:30px;line-height:1.2;letter-spacing:-.015em;margin:2px 0 6px}
h2{font-size:20px;letter-spacing:-.01em;margin:0 0 2px;overflow-wrap:anywhere}
h3{font-size:13px;font-weight:600;margin:0 0 10px}
p{margin:0 0 12px}
.brand{color:var(--s0);font-weight:650;font-size:14px;margin:0}
.muted,figcaption{color:var(--muted)}
section,footer{border-top:1px solid var(--rule);padding-top:26px;margin-top:34px}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:20px;
margin:14px 0 18px}
figure{margin:0;padding:16px 18px 14px;background:var(--panel);border-radius:10px;
min-width:0;display:flex;flex-direction:column}
figure:only-child{max-width:640px}
figcaption{font-size:12.5px;line-height:1.45;margin-top:auto;
padding-top:8px}
svg{display:block;width:100%;height:auto;font-size:12px;fill:var(--ink);overflow:visible}
.narrow{display:none}
text.muted{fill:var(--muted)}
text.number{font-variant-numeric:tabular-nums}
.halo{paint-order:stroke;stroke:var(--panel);stroke-width:4px;stroke-linejoin:round}
.grid{stroke:var(--rule)}.axis{stroke:var(--axis)}
.curve{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.flat{stroke-dasharray:5 5;stroke-width:1.6}
.band{fill:currentColor;opacity:.14}
.leader{fill:none;stroke:currentColor;stroke-width:1;opacity:.7}
.bar{stroke:currentColor;stroke-width:6;opacity:.38}
.seed{stroke:currentColor;stroke-width:1.5;opacity:.75}
g circle{fill:currentColor}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}
.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;font-size:13.5px;line-height:1.35;width:100%;
font-variant-numeric:tabular-nums}
th,td{padding:8px 10px;text-align:right;white-space:nowrap;vertical-align:top;
border-bottom:1px solid var(--rule)}
thead th{font-weight:600;font-size:12.5px;color:var(--muted);border-bottom-color:var(--axis)}
th:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--ground)}
tbody th{font-weight:600}
td small{display:block;color:var(--muted);font-size:12px}
.swatch{display:inline-block;width:9px;height:9px;border-radius:50%;background:currentColor;
margin-right:8px}
footer{font-size:14px}footer p,footer ul{max-width:76ch}footer h2{font-size:15px;margin-top:20px}
ul{margin:0;padding-left:20px}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 18px;margin:6px 0 0}
dt{color:var(--muted);overflow-wrap:anywhere}dd{margin:0}
code{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
@media(max-width:560px){main{padding:24px 16px 40px}h1{font-size:25px}h2{font-size:18px}
.wide{display:none}.narrow{display:block}figure{padding:14px 10px 12px}
dl{grid-template-columns:minmax(0,1fr);gap:0}dd{margin-bottom:8px}}
""".strip()
